"""The sweep on one self-contained page: the winner, how to use it, the ranking, the plots."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from distilface.report.style import CSS
from distilface.report.text import points
from distilface.sweeping.config import SweepConfig, describe
from distilface.sweeping.plots import Plot
from distilface.sweeping.results import BEST_FILE, MODEL_FOLDER, Row, best_row

_SHOWN = 30


def ranking(config: SweepConfig, rows: Sequence[Row], limit: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the trials, complete ones by score, then the others by index."""
    ranked = sorted(rows, key=lambda row: (row.score is None, -(row.score or 0.0), row.index))
    cells = []
    for row in ranked[:limit]:
        run = row.best_run
        spread = [item.score for item in row.runs]
        score = points(row.score) if row.score is not None else "–" if run is None else f"({run.score:.2f})"
        cells.append([
            str(row.index), *(describe({"": row.setting[key]})[1:] if key in row.setting else "–"
                              for key in config.space),
            score, *([f"{max(spread) - min(spread):.2f}" if row.score is not None else "–"]
                     if len(config.seeds) > 1 else []),
            "–" if run is None else str(run.best_step), f"{sum(item.seconds for item in row.runs):.0f}", row.state])
    seeds = ["range over seeds"] if len(config.seeds) > 1 else []
    return ["trial", *config.space, "dev Spearman", *seeds, "best step", "seconds", "state"], cells


def verdict(rows: Sequence[Row]) -> str:
    """Who won, in one sentence."""
    best = best_row(rows)
    if best is None or best.best_run is None:
        return "No trial is complete."
    seeds = f", mean over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    return (f"Trial {best.index} is best with a dev Spearman of {best.score:.2f}{seeds} (kept at step "
            f"{best.best_run.best_step}): {describe(best.setting)}")


def to_html(config: SweepConfig, rows: Sequence[Row], plots: Sequence[Plot], out: Path) -> str:
    """The page; plots are inside it."""
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed", "running",
                                                                      "waiting") if state in states)
    header, cells = ranking(config, rows, _SHOWN)
    table = "".join("<tr><th scope=row>" + escape(row[0]) + "</th>" + "".join(f"<td>{escape(cell)}</td>"
                                                                               for cell in row[1:]) + "</tr>\n"
                    for row in cells)
    more = f"<p class=about>The first {_SHOWN} of {len(rows)}; all are in trials.csv.</p>" if len(rows) > _SHOWN else ""
    reasons = "".join(f"<li>trial {row.index}: {escape(row.reason)}</li>" for row in rows if row.reason)
    failures = f"<section><h2>Failed</h2><ul>{reasons}</ul></section>\n" if reasons else ""
    figures = "".join(
        f'<figure><img src="data:image/png;base64,{base64.b64encode(plot.png).decode()}" alt="{escape(plot.alt)}">'
        "</figure>\n" for plot in plots)
    heads = "".join(f"<th scope=col>{escape(name)}</th>" for name in header)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>distilface sweep</title>
<style>{CSS}
figure img {{ display: block; width: 100%; height: auto; background: #fff; }}</style></head>
<body><main>
<header><h1>distilface sweep</h1><p>{config.method}, sampler {config.sampler}, pruner {config.pruner}; {counts} of
{config.total} trials</p></header>
<section class="verdict"><h2>{escape(verdict(rows))}</h2>{_use(config, rows, out)}</section>
<section class="plots">
{figures}</section>
<section><h2>Trials</h2><p class="about">Scored on dev pairs alone; the best step of each run counts, so the winner's
score is a little optimistic: report it on a test set, once. A pruned trial shows its best score in brackets.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Trials"><table><thead><tr>{heads}</tr></thead>
<tbody>
{table}</tbody></table></div>{more}</section>
{failures}</main></body></html>
"""


def _use(config: SweepConfig, rows: Sequence[Row], out: Path) -> str:
    best = best_row(rows)
    if best is None:
        return ""
    kept = ""
    if config.keep_model:
        place = Path(best.place) if best.place else out.resolve()
        kept = f"<p>Its model: <code>{escape(str(place / MODEL_FOLDER))}</code></p>"
    command = f"distilface {config.method} --config {BEST_FILE} --out runs/best"
    return f"{kept}<p>Train it again:</p><pre>{escape(command)}</pre>"
