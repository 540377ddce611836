"""Functions and a class that the tests of datasets map, in a module that workers import."""

import os

import numpy as np


class Counter:
    """Counts how often it is built and closed, in a folder; says where a batch was."""

    def __init__(self, folder, *, device):
        self.folder, self.device = folder, device.id
        self.note("built")

    def note(self, what):
        name = f"{what}-{self.device}-{os.getpid()}-{len(os.listdir(self.folder))}"
        with open(os.path.join(self.folder, name), "x"):
            pass

    def __call__(self, batch):
        self.note("called")
        return {"device": [self.device] * len(batch["number"])}

    def close(self):
        self.note("closed")


def in_place(batch):
    batch["text"] = [text.upper() for text in batch["text"]]
    batch["number"][0] = -1
    return batch


def in_place_and_other(batch):
    batch["number"] = [number / 2 for number in batch["number"]]
    return {"n": [len(text) for text in batch["text"]]}


def drops(batch):
    del batch["text"]
    return batch


def a_copy(batch):
    return batch | {"twice": [2 * number for number in batch["number"]]}


def other_rows(batch):
    n_rows = sum(number % 2 for number in batch["number"])
    return {"odd": list(range(n_rows)), "many": [[1.5] * n for n in range(n_rows)]}


def arrays(batch):
    return {"vector": np.outer(batch["number"], np.ones(3, "float32")).astype("float32")}


def nothing(batch):
    return None


def nested(batch):
    return {
        "nested": [{"text": text, "is_long": len(text) > 2, "parts": list(text)} for text in batch["text"]]
    }


def with_places(batch, places, *, add):
    return {"place": [place + add for place in places]}


def of_columns(text, number):
    return {"both": [f"{one}{two}" for one, two in zip(text, number, strict=True)]}


def of_a_row(row):
    return {"length": len(row["text"]), "number": row["number"] + 0.5}


def of_a_row_in_place(row):
    row["text"] += "!"
    return row


def fails(batch):
    if 7 in batch["number"]:
        raise RuntimeError("seven")
    return batch
