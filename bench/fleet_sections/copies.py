"""Makes many runs of one, faster than they could be started."""

from __future__ import annotations

import psycopg


def make_copies(url: str, schema: str, first: str, count: int) -> None:
    """Have so many runs like the first, itself included; copies that are there count."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'runs'",
            (schema,),
        ).fetchall()
        listed = ", ".join(name for (name,) in found if name not in {"number", "id", "root_id"})
        connection.execute(
            f"INSERT INTO {schema}.runs (id, root_id, {listed})"
            f" SELECT id || ' ' || g, id || ' ' || g, {listed} FROM {schema}.runs,"
            f" generate_series((SELECT count(*) FROM {schema}.runs WHERE starts_with(id, %s)), %s) AS g WHERE id = %s",
            (first, count - 1, first),
        )
        connection.execute(f"VACUUM ANALYZE {schema}.runs")
