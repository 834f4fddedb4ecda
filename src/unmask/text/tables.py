"""Rows of tables: .parquet files in batches of a few megabytes, and what the `datasets` library loads.

Only the columns asked for are read. A text that is null is an empty one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.config import SourceConfig
from unmask.errors import UserError, nearest
from unmask.text.document import Counts
from unmask.text.files import HUB, File, Remote, content_hash, is_url, reading, size_of, version_of
from unmask.text.position import Cursor, Position

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 << 20
"""Text taken from a table at once, about."""
BATCH_ROWS = 4096
HUB_ROWS = 256

Row = tuple[int, str, Any, str | None]
"""(number from 1, text, value of the column of spans or None, target or None where none is asked for)."""


def parquet_rows(path: File, source: SourceConfig, counts: Counts, cursor: Cursor) -> Iterator[Row]:
    """The rows of one .parquet file, from the cursor's on."""
    parquet = _library("pyarrow.parquet", f"reading {path}")
    before, begin = counts.consumed, cursor.at
    with _damage_named(path), contextlib.ExitStack() as opened:
        size = size_of(path)
        stream = opened.enter_context(path.open("rb")) if isinstance(path, Remote) else path
        file = opened.enter_context(parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False))
        columns = _checked(file.schema_arrow, source, str(path))
        total = file.metadata.num_rows
        groups, number = _groups_from(file.metadata, begin.row)
        for batch in file.iter_batches(_rows_at_once(file.metadata, columns), groups, columns=columns):
            for row in _rows(batch, source, number, str(path), counts):
                if row[0] > begin.row:
                    cursor.at = Position(begin.file, row=row[0] - 1)
                    yield row
            number += batch.num_rows
            counts.consumed = before + size * number // max(1, total)
    counts.consumed = before + size


def _groups_from(metadata: Any, row: int) -> tuple[list[int], int]:
    """The numbers of the row groups that hold row `row` or later ones, and the rows before them."""
    before = 0
    for g in range(metadata.num_row_groups):
        rows = metadata.row_group(g).num_rows
        if before + rows > row:
            return list(range(g, metadata.num_row_groups)), before
        before += rows
    return [], before


@contextlib.contextmanager
def _damage_named(path: File) -> Iterator[None]:
    import pyarrow as pa

    with reading(path, "; check the file, or copy it again"):
        try:
            yield
        except pa.ArrowException as error:
            raise UserError(f"{path} is no whole parquet file ({_first_line(error)}); copy it again") from error
        except OSError as error:  # also what pyarrow raises for pages that do not unpack
            reason = error.strerror or _first_line(error)
            raise UserError(f"cannot read {path}: {reason}; check the file, or copy it again") from error


def _rows_at_once(metadata: Any, columns: Sequence[str]) -> int:
    """So many rows that a batch has about `BATCH_BYTES`, by the size the file states for its columns."""
    if not metadata.num_rows:
        return 1
    size = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        each = [group.column(c) for c in range(group.num_columns)]
        size += sum(c.total_uncompressed_size for c in each if c.path_in_schema.split(".")[0] in columns)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(1, size)))


def _checked(schema: pa.Schema, source: SourceConfig, where: str) -> list[str]:
    """The columns to read; an error says which there are, and of what type."""
    names = list(schema.names)
    asked = (("field", source.field), ("target", source.target), ("spans", source.spans))
    setting = {key: name for key, name in asked if name is not None}
    for key, name in setting.items():
        if name not in names:
            has = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise UserError(
                f"{where} has no column '{name}' (its columns: {has}): set corpus.{key}{nearest(name, names)}"
            )
    for name in filter(None, (source.field, source.target)):
        type_ = schema.field(name).type
        if not _is_text(type_):
            texts = [n for n in names if _is_text(schema.field(n).type)]
            others = f"columns of text: {', '.join(texts[:8])}" if texts else "it has no column of text"
            raise UserError(f"{where}: the column '{name}' holds {type_}, not text; {others}")
    return list(dict.fromkeys(setting.values()))


def _is_text(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(type_):
        type_ = type_.value_type
    return any(f(type_) for f in (types.is_string, types.is_large_string, types.is_string_view, types.is_null))


def _rows(
    batch: pa.RecordBatch | pa.Table, source: SourceConfig, before: int, where: str, counts: Counts
) -> Iterator[Row]:
    texts = _texts(batch.column(source.field), source.strict, where, before, counts)
    spans = [None] * len(texts) if source.spans is None else batch.column(source.spans).to_pylist()
    targets: list[str] | list[None] = [None] * len(texts)
    if source.target is not None:
        targets = _texts(batch.column(source.target), source.strict, where, before, counts)
    for number, (text, value, target) in enumerate(zip(texts, spans, targets, strict=True), before + 1):
        yield number, text, value, target


def _texts(column: Any, strict: bool, where: str, before: int, counts: Counts) -> list[str]:
    """Texts of a column; bytes that are no UTF-8 (not every writer checks) are replaced and counted, or refused."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError:
        pass
    texts = []
    for number, raw in enumerate(column.cast(pa.large_binary()).to_pylist(), before + 1):
        raw = raw or b""
        if invalid := len(raw) - len(raw.decode(errors="ignore").encode()):
            if strict:
                raise UserError(f"{where}:{number} is not UTF-8: drop strict to have such bytes replaced and counted")
            counts.invalid += invalid
            counts.first_invalid = counts.first_invalid or f"{where}:{number}"
        texts.append(raw.decode(errors="replace"))
    return texts


# ---------------------------------------------------------------- the `datasets` library


@dataclass(frozen=True)
class HubName:
    """hf:NAME or hf:NAME:CONFIG; NAME is one of the hub, or a local directory."""

    name: str
    config: str | None

    @staticmethod
    def of(path: str) -> HubName:
        """
        >>> HubName.of("hf:org/data:en")
        HubName(name='org/data', config='en')
        """
        name, _, config = path.removeprefix(HUB).partition(":")
        if Path(path.removeprefix(HUB)).expanduser().is_dir():
            name, config = path.removeprefix(HUB), ""
        if not name:
            raise UserError(f"corpus={path} names nothing: give hf:NAME or hf:NAME:CONFIG")
        local = Path(name).expanduser()
        return HubName(str(local) if local.is_dir() else name, config or None)


def is_hub(source: SourceConfig) -> bool:
    """Whether the `datasets` library loads the source by its name."""
    return source.path.startswith(HUB) and not is_url(source.path)


def hub_rows(source: SourceConfig, counts: Counts, cursor: Cursor) -> Iterator[Row]:
    """The rows of a name that `datasets.load_dataset` knows, in the order of its split, from the cursor's on."""
    hub, begin = HubName.of(source.path), cursor.at
    datasets = _library("datasets", f"{HUB}{hub.name}")
    with _sentence(source):
        rows = datasets.load_dataset(hub.name, hub.config, split=source.split, streaming=source.stream)
        if rows.column_names is not None:  # a stream may not know before it is read
            wanted = [n for n in dict.fromkeys((source.field, source.target, source.spans)) if n in rows.column_names]
            rows = rows.select_columns(wanted) if wanted else rows
        rows = rows.with_format("arrow")
        if begin.state is not None:
            rows.load_state_dict(dict(begin.state))
        tables = iter(rows.iter(batch_size=HUB_ROWS))
    state, number, skip = begin.state, begin.line - 1, begin.row
    while True:
        with _sentence(source):
            table = next(tables, None)
        if table is None:
            return
        _checked(table.schema, source, source.path)
        for k, row in enumerate(_rows(table, source, number, source.path, counts)):
            if k >= skip:
                cursor.at = Position(line=number + 1, row=k, state=state)
                yield row
        number, skip = number + table.num_rows, 0
        if source.stream:
            state = rows.state_dict()


def hub_content(source: SourceConfig) -> list[Any]:
    """What the rows depend on besides settings: of a local directory its files' bytes, else the hub's revision."""
    hub = HubName.of(source.path)
    base = Path(hub.name)
    if base.is_dir():
        every = sorted(p for p in base.rglob("*") if p.is_file() and not p.name.startswith("."))
        return [[str(p.relative_to(base)), content_hash(p)] for p in every]
    datasets = _library("datasets", f"{HUB}{hub.name}")
    with _sentence(source):
        builder = datasets.load_dataset_builder(hub.name, hub.config)
    return [hub.name, builder.config_id, str(builder.hash), str(builder.info.version)]


def hub_listing(source: SourceConfig) -> list[list[Any]]:
    """[name, bytes, version] of the files of a local directory, or what the hub says of a name."""
    base = Path(HubName.of(source.path).name)
    if base.is_dir():
        every = sorted(p for p in base.rglob("*") if p.is_file() and not p.name.startswith("."))
        return [[os.path.abspath(p), size_of(p), version_of(p)] for p in every]
    return [[str(part), 0, ""] for part in hub_content(source)]


@contextlib.contextmanager
def _sentence(source: SourceConfig) -> Iterator[None]:
    """What the library raises (nearly anything), as one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        name = f"{source.path} (split={source.split})"
        if isinstance(error, ConnectionError):
            raise UserError(
                f"cannot load {name}: {_first_line(error)}; check the name and the network, or give a local directory "
                "or file"
            ) from error
        raise UserError(f"cannot load {name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")


def _library(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise UserError(f"{what} needs the package {package}: pip install {package}") from error
