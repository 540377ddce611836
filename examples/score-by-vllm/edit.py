"""The first stage: an edit of a picture, as an instruction of its item says."""

from PIL import Image, ImageEnhance, ImageOps

EDITS = {
    "mirror": ImageOps.mirror,
    "invert": ImageOps.invert,
    "grey": lambda picture: ImageOps.grayscale(picture).convert("RGB"),
    "brighten": lambda picture: ImageEnhance.Brightness(picture).enhance(1.5),
}


def edit(inputs, item):
    picture = Image.open(inputs["image"]).convert("RGB")
    return {"edited": EDITS[inputs["instruction"]](picture)}
