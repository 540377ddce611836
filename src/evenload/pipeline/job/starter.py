"""The files that ``evenload init`` writes: a small job that runs as it is, with every section explained."""

SCHEMA_LINE = "# yaml-language-server: $schema=job.schema.json\n"

JOB = """\
# A job: items go through stages, over all devices. Every path is relative to this file.
#   evenload plan job.yaml          what fits where, and how long it takes; starts nothing
#   evenload run job.yaml           runs it; again: goes on where it ended
version: 1

job:
  name: starter
  inputs:                           # exactly one of folder, glob, jsonl, csv, parquet, openai_batch
    jsonl: items.jsonl              # one item a line; each has an id
    id: id
    group_by: category              # for the report
  out: runs/starter                 # the run folder: results.jsonl, outputs/, report.html
  seed: 42                          # an item's own seed comes from this and its id

devices:
  use: all                          # all | cpu | cpu*4 | cuda:0,1 | a number
  reserve: 1GiB                     # left free on each
  # limits: {"cuda:0": 20GiB}       # never use more than this of one
  # allow_lossy: true               # allow fits that change results (fp8, nf4)

stages:                             # each item goes through all of them, in this order
  - name: draft
    target: stages.py:Draft         # file.py:Class or package.module:Class; it is built once on each device
    params: {words: 3}              # for its constructor
    samples: 2                      # each item goes through it twice, with two seeds ...
    outputs: {text: text}           # text, number, boolean, json; png, jpg, wav, npy, txt, ... become files
  - name: judge
    target: stages.py:Judge
    outputs: {score: number}
    best: {by: score}               # ... and the better one goes on
    # estimate: {item_s: 0.5}       # what you know of it, until it ran once
  - name: polish
    target: stages.py:Polish
    when: score >= 0.2              # only these items; the others are done here
  # A stage that ships, with a model of diffusers or transformers:
  # - name: edit
  #   kind: image_edit
  #   model: {path: Qwen/Qwen-Image-Edit, dtype: bfloat16}
  #   call: {num_inference_steps: 40, true_cfg_scale: 4.0, negative_prompt: " "}
  #   fit: [whole, layer_split, resident_stream]   # ways to hold it that may be used
  #   python: /venvs/edit/bin/python               # an environment of its own
  #   outputs: {edited: png}

schedule:
  mode: auto                        # auto | single | data_parallel | model_parallel | stage_parallel | swap
  policy: measured                  # faster devices get the last items; pull: whoever is free

errors:
  on_error: record                  # note it and go on; or stop
  retries: 1
  max_error_rate: 0.2               # of all items; beyond, no more are dealt

report:
  html: true
  sort: score
"""

ITEMS = """\
{"id": "sky", "category": "color", "prompt": "make the sky red"}
{"id": "hat", "category": "object", "prompt": "give the person on the left a hat"}
{"id": "ink", "category": "style", "prompt": "turn this photo into a drawing in ink"}
"""

STAGES = '''\
"""The stages of job.yaml: plain classes. Put your models here."""


class Draft:
    def __init__(self, context, *, words=3):
        self.words = words  # load a model here: once on each device, context.device.torch says where

    def __call__(self, inputs, item):
        drawn = item.rng().permutation(inputs["prompt"].split())  # all randomness from the item: same results
        return {"text": " ".join(drawn[: self.words])}


class Judge:
    def __call__(self, inputs, item):
        wanted = set(inputs["prompt"].split())
        return {"score": len(wanted & set(inputs["text"].split())) / len(wanted)}


class Polish:
    def __call__(self, inputs, item):
        return {"title": inputs["text"].capitalize()}
'''
