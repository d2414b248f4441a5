"""Text kept as Arrow."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from vanilla_transformer.atomic_files import atomic_write
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.text_lines import CorpusError


def write_tables(tables: Iterable[pa.Table], path: Path, stamp: str, name: str, form: TextForm) -> None:
    """Write text to an Arrow file that `datasets` can map, with the stamp of its origin."""
    schema = pa.schema([(column, pa.string()) for column in form.names], metadata={"stamp": stamp})
    rows = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(schema.metadata))
                rows += table.num_rows
        if not rows:
            raise CorpusError(f"there are no {form.unit} in {name}")


def stamp_in(path: Path) -> str | None:
    """Return the stamp in a file of `write_tables`, None if there is no such file."""
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            return (reader.schema.metadata or {}).get(b"stamp", b"").decode()
    except (OSError, pa.ArrowInvalid):
        return None
