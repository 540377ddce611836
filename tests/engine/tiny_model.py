"""Make a mixture of 16 experts with random weights and a tokenizer, that an engine can serve.

python tiny_model.py OUT TEXT...
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

N_EXPERTS, N_LAYERS, VOCABULARY = 16, 2, 1000


def main(out: str, texts: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    wrapped.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=N_EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        max_position_embeddings=256,
        decoder_sparse_step=1,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
        norm_topk_prob=True,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
