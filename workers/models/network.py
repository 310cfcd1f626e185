"""The small masked-language model, and its one file of weights and words."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from workers.models.rows import Places, joined, pad, places_of
from workers.models.vocabulary import MASK_ID, PAD_ID, Vocabulary

__all__ = ["Network", "Shape", "WordFiller", "restore", "save"]

# One entry for everything: safetensors writes several in no fixed order, and the
# same training should give the same bytes.
_METADATA = "infilling"

_QUIET = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a network is."""

    #: Tokens it reads, and how many of them, the last ones, it may answer with.
    tokens: int
    words: int
    #: Numbers that stand for one token between the layers.
    width: int = 128
    heads: int = 4
    layers: int = 2
    #: The longest sentence, in tokens.
    positions: int = 64


class Network(nn.Module):
    """
    A transformer that guesses masked words from both sides.

    Args:
        shape: How large to make it.
        dropout: Share of numbers forgotten at each step of the training.
    """

    def __init__(self, shape: Shape, *, dropout: float = 0.05) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.tokens, shape.width, padding_idx=PAD_ID)
        self.positions = nn.Embedding(shape.positions, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width,
            shape.heads,
            4 * shape.width,
            dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer,
            shape.layers,
            norm=nn.LayerNorm(shape.width),
            enable_nested_tensor=False,
        )
        self.bias = nn.Parameter(torch.zeros(shape.words))
        # The usual start, N(0, 1), is far too loud for a table that also scores the words.
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=_QUIET)

    def forward(self, tokens: Tensor, places: Places) -> Tensor:
        """
        Score every word at some places.

        Args:
            tokens: Token numbers, shape (rows, columns), padded with ``PAD_ID``.
            places: Where a word is wanted; nothing is scored elsewhere.

        Returns:
            Scores of shape (places, words).
        """
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=tokens == PAD_ID)
        # Reading and answering share one table: half the weights, and better with few lines.
        words = self.tokens.weight[-self.shape.words :]
        return nn.functional.linear(hidden[places], words, self.bias)


class WordFiller:
    """
    A trained network and its words, ready to answer on a device.

    Args:
        network: The network; it is moved to the device and made to stop learning.
        vocabulary: The words it was trained with.
        device: ``"cpu"`` or ``"cuda:0"``.
    """

    def __init__(self, network: Network, vocabulary: Vocabulary, device: str) -> None:
        if device == "cpu":
            # So small a network gains nothing from threads that spin while they wait for
            # each other, and they would take the processor from the servers beside it.
            torch.set_num_threads(1)
        self.network = network.to(device).eval()
        self.vocabulary = vocabulary
        self.device = device
        self.positions = network.shape.positions

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Number the tokens of each sentence."""
        return [self.vocabulary.encode(sentence) for sentence in sentences]

    @torch.inference_mode()
    def fill(self, rows: list[list[int]]) -> list[str]:
        """
        Answer a batch in one pass through the network.

        Args:
            rows: Token numbers, each with a mask and no longer than `positions`.

        Returns:
            The likeliest word for each row; several words, joined by a space,
            where a row has several masks.
        """
        tokens = pad(rows, PAD_ID)
        places = places_of(tokens, MASK_ID, self.device)
        best = self.network(tokens.to(self.device), places).argmax(-1).tolist()
        return joined((self.vocabulary.words[number] for number in best), rows, MASK_ID)


def save(path: Path, network: Network, vocabulary: Vocabulary) -> None:
    """
    Write weights, shape and words into one safetensors file.

    Args:
        path: Where to write.
        network: What was trained.
        vocabulary: The words it was trained with.
    """
    about = {
        "shape": asdict(network.shape),
        "marks": vocabulary.marks,
        "words": vocabulary.words,
    }
    save_file(network.state_dict(), path, {_METADATA: json.dumps(about)})
    # safetensors lets only the owner read; a worker may run as somebody else.
    path.chmod(0o644)


def restore(path: Path) -> tuple[Network, Vocabulary]:
    """
    Read what `save` wrote.

    Args:
        path: The safetensors file.

    Returns:
        The network, on the CPU, and its words.

    Raises:
        ValueError: The file is not one of ours, or this network has other parts.
        OSError: The file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[_METADATA])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a method of the file, which is no dict)
        vocabulary = Vocabulary(about["marks"], about["words"])
        network = Network(Shape(**about["shape"]))
        network.load_state_dict(weights)
    except OSError:
        raise
    except Exception as exc:  # each library has its own kind of error for a strange file
        msg = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ValueError(msg) from exc
    return network, vocabulary
