"""``SizeLearner``: learns sizes while a run goes on, and says when they are to be used."""

from collections.abc import Sequence

from evenload.balance.sizes.size_model import Features, Sample, SizeModel

MOST_SAMPLES = 256
LEAST_FREE = 4  # samples beyond one for each device, before anything is believed
LEAST_GAIN, CHANCE_GAIN = 0.3, 2.4
"""A law must take away this share of the mean's squared error, and more while there are few samples: the
second is divided by their number, as by chance alone so much is to be expected of some feature."""
MOST_GAIN = 0.95


class SizeLearner:
    """A learner of the sizes of one task's items.

    remembered  the law that an earlier program has learned; used until this run knows better
    model       the law by which items are to be dealt now; None: in input order
    """

    def __init__(self, remembered: SizeModel | None = None):
        self.model = remembered
        self._remembered = remembered
        self._samples: list[Sample] = []
        self._n_seen = 0
        self._n_by_device: dict[str, int] = {}
        self._next_look = 1

    def observe(self, device: str, items: Sequence[Features], item_s: float) -> bool:
        """Take in a chunk that ``device`` has run; returns whether ``model`` is another now."""
        self._n_seen += 1
        self._samples.append(Sample(device, items, item_s))
        n = self._n_by_device[device] = self._n_by_device.get(device, 0) + 1
        if n == 3:  # the first one has loaded, compiled, warmed up
            self._samples.remove(next(one for one in self._samples if one.device == device))
        del self._samples[:-MOST_SAMPLES]
        if self._n_seen < self._next_look:
            return False
        self._next_look = self._n_seen + max(1, self._n_seen // 16)
        before, self.model = self.model, self._choose()
        return self.model is not before

    def _choose(self) -> SizeModel | None:
        if len(self._samples) < LEAST_FREE:
            return self.model
        from evenload.balance.sizes.fit import Samples, fit  # numpy, which short runs do without

        samples = Samples(self._samples)
        if samples.n_free < LEAST_FREE:
            return self.model
        gain = min(MOST_GAIN, LEAST_GAIN + CHANCE_GAIN / samples.n_free)
        limit = (1 - gain) * samples.error_of_mean()
        found = fit(samples)
        laws = [] if found is None else [(found[1], 0, found[0])]
        if self._remembered is not None:
            laws.append((samples.error_of_law(self._remembered), 1, self._remembered))
        error, _, model = min(laws, default=(float("inf"), 0, None), key=lambda law: law[:2])
        return model if error < limit else None
