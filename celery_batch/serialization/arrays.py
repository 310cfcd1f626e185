"""
Arrays and tensors as typed values of kombu's JSON.

An array is ``{"__type__": "ndarray", "__value__": [dtype, shape, base64]}``, with the bytes of
its elements in C order, little-endian; a tensor has the type "tensor".  Neither NumPy nor torch
is imported to encode a value, and torch never to decode one.

Rule 1: an array is decoded to an array; without NumPy to an `EncodedArray`.
Rule 2: a tensor is decoded to a tensor in a process that has imported torch, else to an array.
        Without torch, bfloat16 becomes float32, which is exact, and float8 an `EncodedArray`.
Rule 3: what is decoded may come from anyone: its size is checked, and no object is unpickled.
"""

from __future__ import annotations

import re
import sys
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import prod
from operator import methodcaller
from struct import Struct
from typing import Any

from kombu.utils.json import object_hook, register_type

from celery_batch.compat.kombu_json import json_encoder_of

__all__ = [
    "NDARRAY",
    "TENSOR",
    "EncodedArray",
    "array_decoder",
    "array_parts",
    "array_text",
    "describe",
    "encoded_array",
    "encoded_hook",
    "is_array",
    "is_array_type",
    "itemsize_of",
    "register_arrays_as_lists",
    "register_decoder",
    "register_decoders",
    "register_encoders",
    "size_of",
    "split_rows",
]

NDARRAY, TENSOR = "ndarray", "tensor"

_TYPED = {"__type__", "__value__"}

#: NumPy's dtypes that are encoded: booleans, numbers, times, texts and bytes of fixed width.
_NUMPY_DTYPE = re.compile(r"[<|]([biufcmMSUV])(\d{1,9})(\[[0-9A-Za-z]{1,12}\])?")

#: Their letters of numbers; and of times, of which Python has not all.
_NUMBERS, _TIMES = "biufc", "mM"

#: Bytes of an element of NumPy's texts, for each of their characters.
_CHARACTER = 4

#: Torch's dtypes, with NumPy's of the same elements; as a number of bytes where it has none.
_TORCH_DTYPES: dict[str, str | int] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "complex128": "<c16",
    "complex64": "<c8",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "|u1",
    "bool": "|b1",
}

#: Formats of `struct` for the elements that are Python's numbers.
_FORMATS = {
    "<f8": "d",
    "<f4": "f",
    "<f2": "e",
    "<i8": "q",
    "<i4": "i",
    "<i2": "h",
    "|i1": "b",
    "<u8": "Q",
    "<u4": "I",
    "<u2": "H",
    "|u1": "B",
    "|b1": "?",
}

#: NumPy has arrays of at most so many dimensions.
_MOST_DIMENSIONS = 64

#: Bytes of the largest number of NumPy that has one of Python.
_LARGEST_NUMBER = 8

#: Fewer bytes are cheaper to copy than to look at.
_SMALL = 1 << 14

#: Types without arrays in them; and how deep, and among how many values, arrays are looked for.
PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_LEVELS, _SHOWN = 4, 100


class EncodedArray:
    """
    An array or a tensor that is not decoded, in a process that does without NumPy or torch.

    Args:
        kind: "ndarray" or "tensor".
        dtype: NumPy's or torch's name of the type of its elements, such as "<f4" or "float32".
        shape: Its length in each dimension.
        data: The bytes of its elements, a view of them, or those as base64.

    Raises:
        ValueError: The arguments contradict each other, or are no such names and numbers.
    """

    __slots__ = ("_data", "dtype", "kind", "nbytes", "shape")

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, kind: str, dtype: str, shape: tuple[int, ...], data: bytes | memoryview | str
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.shape = shape
        self._data = data
        if kind not in (NDARRAY, TENSOR):
            raise ValueError(f"there is no kind of array {kind!r}")
        #: The bytes of all elements.
        self.nbytes = prod(shape) * itemsize_of(kind, dtype)
        # Base64 has four characters for three bytes.
        size = -(-self.nbytes // 3) * 4 if isinstance(data, str) else self.nbytes
        if len(data) != size:
            raise ValueError(f"{self!r}: has {size} bytes, got {len(data)}")

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return itemsize_of(self.kind, self.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def tobytes(self) -> bytes:
        """Return the bytes of the elements, in C order, little-endian."""
        if isinstance(self._data, str):
            data = a2b_base64(self._data)
            if len(data) != self.nbytes:
                raise ValueError(f"{self!r}: has {self.nbytes} bytes, got {len(data)}")
            self._data = data
        elif isinstance(self._data, memoryview):
            return self._data.tobytes()
        return self._data

    def decode(self) -> Any:
        """
        Return the array or the tensor; itself where what it needs is missing.

        An array is a view of a view of its bytes, and can be changed if these can; else it is a
        copy.

        Raises:
            ValueError: It is none, though its size is right.
        """
        torch = sys.modules.get("torch") if self.kind == TENSOR else None
        if torch is not None:
            return self._as_tensor(torch)
        try:
            return self._as_array(import_module("numpy"))
        except ImportError:
            return self

    def _as_tensor(self, torch: Any) -> Any:
        dtype = getattr(torch, self.dtype)
        if not prod(self.shape):
            return torch.empty(self.shape, dtype=dtype)
        own: Any = self._data
        if not (isinstance(own, memoryview) and not own.readonly):
            own = bytearray(self.tobytes())
        return torch.frombuffer(own, dtype=dtype).reshape(self.shape)

    def _as_array(self, numpy: Any) -> Any:
        if self.dtype == "bfloat16":  # the first half of a float32
            halves = numpy.frombuffer(self.tobytes(), "<u2").astype("<u4")
            return (halves << 16).view("<f4").reshape(self.shape)
        dtype = _TORCH_DTYPES[self.dtype] if self.kind == TENSOR else self.dtype
        if isinstance(dtype, int):
            return self
        data = self._data if isinstance(self._data, memoryview) else bytearray(self.tobytes())
        try:
            return numpy.ndarray(self.shape, dtype, data)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self!r}: {error}") from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 (NumPy's)
        """Return it as an array, for NumPy's functions."""
        numpy = import_module("numpy")
        found = self._as_array(numpy)
        if found is self:
            raise TypeError(self._way_out())
        return numpy.array(found, dtype, copy=copy)

    def __len__(self) -> int:
        """Return the length of its first dimension."""
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first dimension: numbers of an array of one, else encoded arrays."""
        rows, data = len(self), self.tobytes()
        if self.ndim == 1:
            yield from self._numbers(data)
            return
        size = self.nbytes // rows if rows else 0
        for start in range(0, rows * size, size) if size else [0] * rows:
            yield EncodedArray(self.kind, self.dtype, self.shape[1:], data[start : start + size])

    def _numbers(self, data: bytes) -> Iterator[Any]:
        dtype = _TORCH_DTYPES[self.dtype] if self.kind == TENSOR else self.dtype
        size = self.itemsize
        elements = (data[start : start + size] for start in range(0, len(data), size or 1))
        if self.dtype == "bfloat16":  # the first half of a float32
            dtype, data = "<f4", b"".join(b"\0\0" + half for half in elements)
        if dtype in _FORMATS:
            return (number for (number,) in Struct(f"<{_FORMATS[dtype]}").iter_unpack(data))
        if size and str(dtype).startswith("<U"):
            return (each.decode("utf-32-le", "surrogatepass").rstrip("\0") for each in elements)
        found = self.decode()
        if found is self:
            raise TypeError(self._way_out())
        return iter(found.tolist())

    def __getattr__(self, name: str) -> Any:
        """Say how to get an array, which has more attributes."""
        raise AttributeError(name if name.startswith("__") else f"{name}: {self._way_out()}")

    def _way_out(self) -> str:
        if self.dtype.startswith("float8"):
            way = "import torch first"
        elif find_spec("numpy") is None:
            way = "install NumPy, or make lists of it with celery_batch.as_lists()"
        else:
            way = "call its decode()"
        return f"{self!r} is not decoded to an array: {way}"

    def __eq__(self, other: object) -> bool:
        """Return whether the other has the same type, shape and bytes."""
        if not isinstance(other, EncodedArray):
            return NotImplemented
        mine, others = (self.kind, self.dtype, self.shape), (other.kind, other.dtype, other.shape)
        return mine == others and self.tobytes() == other.tobytes()

    def __repr__(self) -> str:
        """Return kind, type and shape."""
        return f"{self.kind}({self.dtype}, {list(self.shape)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy it with bytes of its own."""
        data = self._data.tobytes() if isinstance(self._data, memoryview) else self._data
        return EncodedArray, (self.kind, self.dtype, self.shape, data)

    def __json__(self) -> dict[str, Any]:
        """Return it as kombu's JSON has it."""
        data = self._data
        text = data if isinstance(data, str) else _base64(data)
        return {"__type__": self.kind, "__value__": [self.dtype, [*self.shape], text]}


@lru_cache(maxsize=256)
def itemsize_of(kind: str, dtype: str) -> int:
    """Return the bytes of an element; raise `ValueError` for another name."""
    found = _TORCH_DTYPES.get(dtype, "") if kind == TENSOR else dtype
    if isinstance(found, int):
        return found
    match = _NUMPY_DTYPE.fullmatch(found)
    if match is None:
        raise ValueError(f"{dtype!r} is no type of a {kind}'s elements that can be decoded")
    return int(match[2]) * (_CHARACTER if match[1] == "U" else 1)


def _base64(data: Any) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _encoded(kind: str, value: Any) -> EncodedArray:
    """Return a typed value that is not decoded; raise `ValueError` for anything else."""
    try:
        dtype, shape, text = value
    except (TypeError, ValueError):
        text = None
    if not (type(text) is str and text.isascii()):
        raise ValueError(f"a {kind} has a dtype, a shape and its bytes as base64")
    return encoded_array(kind, dtype, shape, text)


def encoded_array(kind: str, dtype: Any, shape: Any, data: memoryview | str) -> EncodedArray:
    """Return an array that is not decoded; its parts may come from anyone, and are checked."""
    return EncodedArray(kind, dtype, _checked_shape(kind, dtype, shape), data)


def array_decoder(dtype: Any, shape: Any) -> Callable[[bytes], Any]:
    """Return what makes arrays from base64, all of one type and shape, which are checked once."""
    numpy = import_module("numpy")
    shape = _checked_shape(NDARRAY, dtype, shape)
    size = prod(shape) * itemsize_of(NDARRAY, dtype)
    try:
        kind = numpy.dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from None
    ndarray, characters = numpy.ndarray, -(-size // 3) * 4

    def decode(text: bytes) -> Any:
        data = bytearray(a2b_base64(text)) if len(text) == characters else b""
        if len(data) != size:
            raise ValueError(f"an array of {size} bytes has other base64")
        try:
            return ndarray(shape, kind, data)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no array of {shape}: {error}") from None

    return decode


def _checked_shape(kind: str, dtype: Any, shape: Any) -> tuple[int, ...]:
    is_shape = (
        isinstance(shape, (list, tuple))
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(length) is int and length >= 0 for length in shape)
    )
    if not (is_shape and type(dtype) is str):
        raise ValueError(f"a {kind} has the name of a dtype, and a shape of integers")
    return tuple(shape)


def encoded_hook(found: dict[str, Any]) -> Any:
    """Return an object of JSON as kombu decodes it, but arrays and tensors undecoded."""
    kind = found.get("__type__")
    if kind in (NDARRAY, TENSOR) and found.keys() == _TYPED:
        return _encoded(str(kind), found["__value__"])
    return object_hook(found)


class _LoadedType(type):
    """Of a class that stands for one of a module which may never be imported."""

    module: str
    name: str

    def __instancecheck__(cls, value: object) -> bool:
        """Return whether a value is an instance of the class that it stands for."""
        return cls.__subclasscheck__(type(value))

    def __subclasscheck__(cls, kind: type) -> bool:
        """Return whether a type is the class that it stands for, or one below it."""
        found = getattr(sys.modules.get(cls.module), cls.name, None)
        return found is not None and found in kind.__mro__


class _NDArray(metaclass=_LoadedType):
    module, name = "numpy", "ndarray"


class _NumPyScalar(metaclass=_LoadedType):
    module, name = "numpy", "generic"


class _Tensor(metaclass=_LoadedType):
    module, name = "torch", "Tensor"


def is_array(value: object) -> bool:
    """Return whether a value is an array of NumPy, a tensor of torch, or one that is encoded."""
    return is_array_type(type(value))


def is_array_type(kind: type) -> bool:
    """Return whether a type is that of such values; runs no code of the type."""
    return issubclass(kind, (_NDArray, _Tensor, EncodedArray))


def size_of(value: Any) -> int:
    """Return the bytes of an array's elements; 0 of a value that has none, or a sparse tensor."""
    try:
        return getattr(value, "nbytes", 0)
    except RuntimeError:  # torch's, of tensors that cannot be encoded
        return 0


def array_parts(value: Any) -> tuple[str, str, list[int], Any]:
    """Return an array's kind, dtype and shape, and its bytes, which a tensor must outlive."""
    if isinstance(value, EncodedArray):
        return value.kind, value.dtype, [*value.shape], value.tobytes()
    if isinstance(value, _NDArray):
        return NDARRAY, *_ndarray_parts(value)
    return TENSOR, *_tensor_parts(value)


@lru_cache(maxsize=256)
def _kind_in_json(kind: type) -> str | None:
    """Return how JSON names arrays of a type; None for other types, and those encoded otherwise."""
    encoder = json_encoder_of(kind)
    if encoder is _encode_array:
        return NDARRAY
    return TENSOR if encoder is _encode_tensor else None


def array_text(value: Any) -> str | None:
    """Return an array or a tensor as kombu's JSON has it; None for another value."""
    type_: Any = type(value)
    kind = _kind_in_json(type_)
    if kind is None:
        return None
    _, dtype, shape, data = array_parts(value)
    text = f'["{dtype}", {shape}, "{_base64(data)}"]'
    return f'{{"__type__": "{kind}", "__value__": {text}}}'


def _ndarray_parts(array: Any) -> tuple[str, list[int], Any]:
    dtype = array.dtype
    if dtype.str[0] == ">":
        dtype = dtype.newbyteorder("<")
        array = array.astype(dtype)
    is_plain = dtype.fields is None and dtype.type.__module__ == "numpy"
    if not is_plain or _NUMPY_DTYPE.fullmatch(dtype.str) is None:
        raise TypeError(
            f"an array of {dtype} cannot be encoded: use .tolist(), or .astype() with a dtype of"
            f" booleans, numbers, times, texts or bytes"
        )
    if hasattr(array, "mask"):
        raise TypeError("a masked array cannot be encoded: use its .filled()")
    return dtype.str, [*array.shape], _elements(array)


def _elements(array: Any) -> Any:
    """Return the bytes of an array's elements in C order, uncopied where they lie so."""
    if array.nbytes < _SMALL or not array.flags.c_contiguous:
        return array.tobytes()
    return memoryview(array.reshape(-1).view("u1")).cast("B")


def _tensor_parts(tensor: Any) -> tuple[str, list[int], Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not sys.modules["torch"].strided or dtype not in _TORCH_DTYPES:
        raise TypeError(
            f"a tensor of {tensor.layout} and {tensor.dtype} cannot be encoded: use .to_dense(),"
            f" .dequantize(), .to() with another dtype, or .tolist()"
        )
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = tensor.numel() * tensor.element_size()
    if not size:
        return dtype, [*tensor.shape], b""
    data = (import_module("ctypes").c_char * size).from_address(tensor.data_ptr())
    data.tensor = tensor  # whose memory it is
    return dtype, [*tensor.shape], data


def _encode_array(array: Any) -> list[Any]:
    dtype, shape, data = _ndarray_parts(array)
    return [dtype, shape, _base64(data)]


def _encode_tensor(tensor: Any) -> list[Any]:
    dtype, shape, data = _tensor_parts(tensor)
    return [dtype, shape, _base64(data)]


def _encode_scalar(number: Any) -> Any:
    """Return a number of NumPy as Python's; what has none as an array without dimensions."""
    if number.dtype.kind in "biuf" and number.dtype.itemsize <= _LARGEST_NUMBER:
        return number.item()
    return {"__type__": NDARRAY, "__value__": _encode_array(number.reshape(()))}


def split_rows(outputs: Any) -> Any:
    """Return the rows of an array of numbers or times; anything else as it is."""
    array: Any = outputs
    if isinstance(outputs, _NDArray):
        kind = array.dtype.kind
        is_split = array.ndim and kind in (_TIMES if array.ndim == 1 else _NUMBERS + _TIMES)
        # A row of a matrix is a matrix of one row.
        is_matrix = isinstance(array, sys.modules["numpy"].matrix)
        return list(array.A if is_matrix else array) if is_split else outputs
    if isinstance(outputs, _Tensor) and array.ndim > 1:
        return list(array.unbind())
    return outputs


def describe(value: Any) -> Any:
    """Return a value with arrays as objects with short texts, for logs; itself if it has none."""
    if "numpy" not in sys.modules and "torch" not in sys.modules:
        return value  # there can be no arrays in this process
    return _described(value, _LEVELS)


def _described(value: Any, levels: int) -> Any:
    kind = type(value)
    if kind in PLAIN or not levels:
        return value
    if kind is list or kind is tuple:
        found = [_described(each, levels - 1) for each in value[:_SHOWN]]
        is_same = all(new is old for new, old in zip(found, value, strict=False))
        return value if is_same else kind([*found, *value[_SHOWN:]])
    if kind is dict:
        values = {key: _described(each, levels - 1) for key, each in value.items()}
        return value if all(each is value[key] for key, each in values.items()) else values
    return _Short(value) if is_array(value) else value


class _Short:
    """An array as it is shown."""

    def __init__(self, array: Any) -> None:
        dtype = str(array.dtype).removeprefix("torch.")
        kind = TENSOR if isinstance(array, _Tensor) else NDARRAY
        self._text = f"{getattr(array, 'kind', kind)}({dtype}, {tuple(array.shape)})"

    def __repr__(self) -> str:
        """Return kind, type and shape."""
        return self._text


def register_arrays_as_lists() -> None:
    """Have kombu's JSON encode arrays and tensors as lists of numbers, in this process."""
    for kind in (_NDArray, _Tensor):
        register_type(kind, None, methodcaller("tolist"))
    _kind_in_json.cache_clear()


@cache
def _stand_in(name: str) -> type:
    """Return a type without values, since kombu knows a decoder by the type that it makes."""
    return type(name, (), {})


def register_decoder(name: str, decode: Callable[[Any], Any]) -> None:
    """Have kombu's JSON decode typed values of this name in this process; it encodes none."""
    register_type(_stand_in(name), name, vars, decode)


def register_decoders() -> None:
    """Have kombu's JSON decode arrays and tensors in this process; it encodes none."""
    register_decoder(NDARRAY, _decoder(NDARRAY))
    register_decoder(TENSOR, _decoder(TENSOR))


def _decoder(kind: str) -> Callable[[Any], Any]:
    return lambda value: _encoded(kind, value).decode()


def register_encoders() -> None:
    """Have kombu's JSON encode arrays, tensors and NumPy's numbers in this process."""
    register_type(_NDArray, NDARRAY, _encode_array, _decoder(NDARRAY))
    register_type(_Tensor, TENSOR, _encode_tensor, _decoder(TENSOR))
    register_type(_NumPyScalar, None, _encode_scalar)
    _kind_in_json.cache_clear()
