"""Make a BLIP-2 with random weights and a tokenizer, 3 MB in all, that vLLM serves on a CPU within a minute.

    python tiny_model.py OUT

Its vocabulary is made of the files beside it. Its scores mean nothing; the engine is a real one.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, PreTrainedTokenizerFast
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

VOCABULARY, PIXELS, N_QUERIES = 600, 56, 8
SHARPER = 8  # than weights are drawn, so that unlike pictures get unlike answers
ROLES = "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}"


def main(out: str) -> None:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel()
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>", "<pad>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    words.train([str(file) for file in sorted(Path(__file__).parent.glob("*.*"))], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<end>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.chat_template = ROLES
    pictures = BlipImageProcessorPil(size={"height": PIXELS, "width": PIXELS})
    Blip2Processor(pictures, tokenizer, num_query_tokens=N_QUERIES).save_pretrained(out)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Blip2Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "image_size": PIXELS,
            "patch_size": 14,
            **sizes,
        },
        qformer_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "encoder_hidden_size": 64,
            **sizes,
        },
        text_config={
            "model_type": "opt",
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "word_embed_proj_dim": 128,
            "ffn_dim": 256,
            "max_position_embeddings": 512,
            "eos_token_id": 0,
            "pad_token_id": 1,
            "bos_token_id": 0,
            **sizes,
        },
        num_query_tokens=N_QUERIES,
        image_token_index=2,
    )
    model = Blip2ForConditionalGeneration(config)
    for weights in model.parameters():
        weights.data *= SHARPER
    model.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT")
    main(parser.parse_args().out)
