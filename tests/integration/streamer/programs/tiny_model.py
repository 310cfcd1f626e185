"""The model of the tutorials' programs: it knows three sentences."""

from celery_batch import ManagedModel

KNOWN = {
    "twinkle twinkle [MASK] star.": "little",
    "Happy birthday to [MASK].": "you",
    "the answer to life, the [MASK], and everything.": "universe",
}


class TextInfillingModel:
    """Fills in blanks."""

    def predict(self, batch):
        """Answer each sentence with a word."""
        return [KNOWN.get(sentence, "?") for sentence in batch]


class ManagedBertModel(ManagedModel):
    """The same, loaded in its worker."""

    def init_model(self):
        """Load it."""
        self.model = TextInfillingModel()

    def predict(self, batch):
        """Answer a batch."""
        return self.model.predict(batch)
