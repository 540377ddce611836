"""Pages of tools that run one model over a list: their code beside what the tool itself makes of the list.

The pages on sentence-transformers, transformers, diffusers and WebDataset compare by themselves, in the block
that ``test_documents`` runs. Here is what needs processes or packages of its own. Oracles: accelerate's split
in two real processes, and lm-eval's ``hf`` model in one.
"""

import json
import os
from pathlib import Path

import pytest
from docs.test_documents import FENCE, ROOT
from forked_programs import Programs

from evenload._optional import is_installed

needs_lm_eval = pytest.mark.skipif(
    not is_installed("lm_eval"), reason="lm-eval is not installed; use make test-lm-eval"
)


def code_of(page: str) -> str:
    """The first Python block of a page, whether the documents' own test runs it or not."""
    text = (ROOT / "docs" / "coming-from" / f"{page}.md").read_text(encoding="utf-8")
    return next(block["body"] for block in FENCE.finditer(text) if block["language"] == "python")


def told_by(programs: Programs, program: str, folder: Path, n_processes: int = 1) -> dict:
    """Run a program that writes told.json, in one process or in ranks of torch's that meet by a file."""
    begun = []
    with (folder / "errors").open("w+") as errors, open(os.devnull) as null:
        for rank in range(n_processes):
            set_to = {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            if n_processes > 1:
                set_to |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                set_to |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(n_processes))
            begins = f"import json\nimport os\nfrom pathlib import Path\nos.environ.update({set_to})\n"
            path = folder / f"program_{rank}.py"
            path.write_text(begins + program, encoding="utf-8")
            begun.append(programs.start(path, null.fileno(), errors.fileno(), errors.fileno()))
        ends = [one.wait(timeout=500) for one in begun]
        errors.seek(0)
        assert not any(ends), errors.read()[-3000:]
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


SPLIT = """
from types import SimpleNamespace
from accelerate import PartialState
from accelerate.utils import gather_object

state = PartialState(cpu=True, init_method=Path("met").absolute().as_uri())
score = Score(device=SimpleNamespace(torch=state.device))
with state.split_between_processes({"prompt": prompts, "picture": pictures}) as mine:
    found = [(state.process_index, score(*pair)) for pair in zip(mine["prompt"], mine["picture"])]
found = gather_object(found)
if state.is_main_process:
    Path("told.json").write_text(json.dumps(found))
state.destroy_process_group()
"""


def test_a_split_between_two_processes_gives_the_same_scores(
    tmp_path: Path, all_programs: tuple[Programs, Programs]
) -> None:
    pytest.importorskip("accelerate")
    _, programs = all_programs
    programs.load("accelerate", "torch.distributed.fsdp")
    code = code_of("split-between-processes")
    there = told_by(programs, code.partition("run = ")[0] + SPLIT, tmp_path, n_processes=2)
    assert [process for process, _ in there] == [0, 0, 0, 1, 1]  # before anything has run
    here = told_by(programs, f'{code}Path("told.json").write_text(json.dumps(scores))\n', tmp_path)
    assert here == pytest.approx([score for _, score in there], abs=2e-3)


TASKS = """
from lm_eval.tasks import TaskManager
evaluate = functools.partial(simple_evaluate, task_manager=TaskManager(include_defaults=False))
tokenizer = AutoTokenizer.from_pretrained("tiny-model")
tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }} {% endfor %}"
tokenizer.save_pretrained("tiny-model")
rest = {"doc_to_choice": None, "doc_to_target": "sky is blue"}
write = {**task, **rest, "task": "write", "output_type": "generate_until",
         "generation_kwargs": {"until": ["?"], "max_gen_toks": 6}, "metric_list": [{"metric": "exact_match"}]}
read = {**task, **rest, "task": "read", "output_type": "loglikelihood_rolling", "doc_to_text": "",
        "doc_to_target": "{{ask}}", "metric_list": [{"metric": "word_perplexity"}]}

def told(model, cache, **how):
    found = evaluate(model, tasks=[task, write, read], log_samples=True, bootstrap_iters=0, **how)
    answers = {name: [one["filtered_resps"] for one in rows] for name, rows in found["samples"].items()}
    again = evaluate(model, tasks=[task], use_cache=cache, **how)
    return answers, {name: row for name, row in found["results"].items()}, again["results"]

with evenload.Executor("cpu*2") as executor:
    here = [told(Everywhere("tiny-model", executor, batch=4), "here"),
            told(Everywhere("tiny-model", executor), "chat-here", apply_chat_template=True)]
alone = HFLM("tiny-model", device="cpu", batch_size=16)
there = [told(alone, "there"), told(alone, "chat-there", apply_chat_template=True)]
Path("told.json").write_text(json.dumps({"here": here, "there": there}, default=float))
"""


def leaves(found: object) -> list:
    """All values in nested lists and dicts, in order."""
    if isinstance(found, dict):
        return [leaf for key in sorted(found) for leaf in leaves(found[key])]
    return [leaf for one in found for leaf in leaves(one)] if isinstance(found, list) else [found]


@needs_lm_eval
def test_lm_eval_tells_the_figures_of_its_own_model_on_one_device(
    tmp_path: Path, all_programs: tuple[Programs, Programs]
) -> None:
    told = told_by(all_programs[1], code_of("lm-eval") + TASKS, tmp_path)
    here, there = leaves(told["here"]), leaves(told["there"])
    assert len(here) == len(there) > 500
    for ours, theirs in zip(here, there, strict=True):
        assert ours == (pytest.approx(theirs, abs=1e-4) if isinstance(theirs, float) else theirs)
    assert told["here"][0] != told["here"][1]  # the template changes what is asked
