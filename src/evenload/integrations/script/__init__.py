"""``evenload exec``: the process pools of an unchanged script, dealt by evenload."""
