"""One self-contained page of everything that was measured: `python -m figures.report` writes figures/report.html.

It holds what is committed and nothing else: cards and sources of the variants, runs, timelines, pictures, the generated
tables of the README. What is not there yet is left out and named.
"""

from __future__ import annotations

import base64
import csv
import difflib
import gzip
import html
import importlib
import io
import json
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jinja2
import pygments
import typer
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import variants
from common import documents, rows, timeline
from common.card import Card
from common.documents import Document
from common.errors import DamagedRun
from common.problem import Problem
from common.rows import Run, bootstrap_interval, geometric_mean
from figures import NAMES, lettering, source
from figures.__main__ import HERE, RESULTS
from figures.readme import README

TEMPLATES = HERE / "templates"
OUTPUT = HERE / "report.html"
GOLDEN = HERE.parent / "tests" / "golden"
ARCHITECTURES = {"sm_80": "A100", "sm_86": "RTX 3090", "sm_90": "H200"}
"""The thread's GPUs and the one that the committed runs are from."""
_LONG_NUMBER = re.compile(r"(?<![\w.])(-?[1-9]\d*\.\d{3,})")
MOST_PROBLEMS = 5000
"""Of a run whose table the page holds: a whole corpus would make it megabytes larger."""
MOST_LETTERS = 90_000
"""Of a packed table that no picture of the page is drawn from."""
_GLYPH = re.compile(r'<path id="([bs][0-9a-f]+)" d="[^"]*" transform="[^"]*"/>')
"""A glyph's outline as `common.compact` writes it: of the same name in every picture, so that a page needs one."""
_BLOCK = re.compile(r"<!-- (\w+): begin.*?-->\n(.*?)<!-- \1: end -->", re.DOTALL)
MANY, PROSE = 8, 60
"""In a table of more columns, which scrolls anyway, one with a cell of more letters is kept wide enough to read."""


@dataclass(frozen=True)
class Picture:
    """A figure of the page. `alt`: what a person who does not see it is told. `data`: the CSV files behind it."""

    name: str
    caption: str
    alt: str
    svg: str
    data: tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """A CSV file that the page offers, and where it is from; `csv` is None where it would be too large for a page."""

    name: str
    about: str
    csv: str | None

    @property
    def packed(self) -> str:
        """The file as the page holds it: gzip in base64, the same bytes for the same file."""
        return base64.b64encode(gzip.compress((self.csv or "").encode(), mtime=0)).decode()


@dataclass(frozen=True)
class Speed:
    """A variant's speed-up over cuBLAS on a population: geometric mean and interval; None where it has none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """A variant with everything that the page says about it."""

    name: str
    number: str
    card: Card
    parent: str | None
    code: str
    diff: str
    changed_lines: int
    speeds: dict[str, Speed]
    resources: list[dict[str, str]]


# Pictures and their data


def picture(name: str, folder: Path, data: dict[str, Data], results: Path) -> Picture | None:
    """A committed picture, or None where it is not there."""
    path = folder / f"{name}.svg"
    if not path.exists():
        return None
    text = path.read_text()
    module = importlib.import_module(f"figures.{name}")
    caption = " ".join((module.__doc__ or name).split("\n\n")[0].split())
    behind = [known for known in data if known in text and data[known].csv is not None]
    if hasattr(module, "table"):
        data[name] = Data(name, caption, as_csv(module.table(results)))
        behind.append(name)
    words = " ".join(re.findall(r"<!-- (.*?) -->", text))
    return Picture(name, caption, f"{caption} Texts in the picture: {words[:600]}", slim(text, name), tuple(behind))


def slim(svg: str, name: str) -> str:
    """The picture for use inside a page: no head, words as text, identifiers of its own, rounded coordinates."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = lettering.as_text(re.sub(r"<defs>\s*</defs>\s*", "", _GLYPH.sub("", body)))
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = _LONG_NUMBER.sub(lambda found: f"{float(found[1]):.2f}".rstrip("0").rstrip("."), body)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r'\sid="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r'href="#(?![bs][0-9a-f]+")([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", body, count=1)
    return re.sub(r"\s*\n\s*", " ", body).replace("> <", "><").strip()


def glyphs(folder: Path, pictures: list[Picture]) -> str:
    """The outline of every glyph that the pictures still use, each once, from the files of a folder."""
    found: dict[str, str] = {}
    for picture in pictures:
        used = set(re.findall(r'href="#([bs][0-9a-f]+)"', picture.svg))
        for outline in _GLYPH.finditer((folder / f"{picture.name}.svg").read_text()):
            if outline[1] in used:
                found.setdefault(outline[1], outline[0])
    return "".join(found.values())


def as_csv(table: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()


def on_page(data: dict[str, Data], pictures: list[Picture]) -> dict[str, Data]:
    """The same, without the tables that are large and behind no picture."""
    behind = {name for picture in pictures for name in picture.data}
    return {name: known if name in behind else _unless_large(known) for name, known in data.items()}


def _unless_large(data: Data) -> Data:
    if data.csv is None or len(data.packed) <= MOST_LETTERS:
        return data
    return replace(data, csv=None, about=f"{data.about}; behind no picture and too large for this page")


def run_data(run: Run) -> Data:
    """Medians in microseconds, a row a problem and a column a candidate; a status where there is no time."""
    labels = [c["label"] for c in run.candidates]
    where = source.describe(run).split(": ", 1)[1]
    count = len({row.problem for row in run.rows})
    if count > MOST_PROBLEMS:
        return Data(run.id, f"{count:,} problems, too many for this page; {where}", None)
    table: list[list[Any]] = [["M", "N", "K", *labels]]
    for problem in dict.fromkeys(row.problem for row in run.rows):
        found = (run.by_candidate.get(index, {}).get(problem) for index in range(len(labels)))
        table.append([*problem, *(_cell(row) for row in found)])
    return Data(run.id, f"median device time in microseconds; {where}", as_csv(table))


def _cell(row: rows.Row | None) -> str:
    if row is None:
        return ""
    return f"{row.median:.2f}" if row.status == "ok" and row.samples else row.status


def trace_data(run: timeline.Timeline) -> Data:
    """The segments of a timeline, in nanoseconds."""
    table = [[getattr(span, column) for column in timeline.COLUMNS] for span in run.spans]
    shown = [[round(cell, 1) if isinstance(cell, float) else cell for cell in line] for line in table]
    about = f"segments of a launch of {run.facts['variant']}, times in nanoseconds, {run.facts['device']['name']}"
    return Data(run.id, about, as_csv([list(timeline.COLUMNS), *shown]))


def document_data(document: Document) -> Data:
    """The records of a document, a column a key; what is no plain value stands as JSON."""
    columns = list(dict.fromkeys(key for record in document.records for key in record))
    table = [[_plain(record.get(column)) for column in columns] for record in document.records]
    device = document.header.get("device", {}).get("name", "no GPU needed")
    return Data(document.id, f"{len(table)} records; {device}", as_csv([columns, *table]))


def _plain(value: Any) -> Any:
    return "" if value is None else json.dumps(value) if isinstance(value, (list, dict)) else value


def all_data(results: Path) -> dict[str, Data]:
    """Every finished run, document and timeline, by id."""
    found: dict[str, Data] = {}
    for path in sorted([*results.glob("*.jsonl"), *results.glob("*.jsonl.xz")]):
        if path.suffix != ".xz" and not rows.says_finished(path):
            continue
        run = rows.read_run(path)
        if run.finished and not run.header.get("dry_run"):
            found[run.id] = run_data(run)
    for path in sorted(results.glob("*.json")):
        document = documents.read(path)
        if not document.header.get("dry_run"):
            found[document.id] = document_data(document)
    for path in sorted(results.glob(f"{timeline.PREFIX}*{timeline.SUFFIX}")):
        run = timeline.read(path)
        if not run.facts.get("dry_run"):
            found[run.id] = trace_data(run)
    return found


# Variants


def entries(runs: dict[str, Run], golden: Path = GOLDEN) -> list[Entry]:
    """Every variant in the thread's order, then what came after it, then the baselines."""
    found, compiled = [], resources(golden)
    for name in variants.all_names():
        variant = variants.get(name)
        parent = variants.resolve(variant.card.parent) if variant.card.parent else None
        old = variants.get(parent).source if parent else None
        diff, changed = source_diff(old, variant.source, parent or "", name) if old else ("", 0)
        number = name.split("_")[0] if source.is_numbered(name) else ""
        speeds = {population: speed(run, name) for population, run in runs.items()}
        mine = [row for row in compiled if row["variant"] == name]
        code = highlighted(variant.source)
        found.append(Entry(name, number, variant.card, parent, code, diff, changed, speeds, mine))
    return found


def resources(folder: Path) -> list[dict[str, str]]:
    """What compiled kernels take on ARCHITECTURES, from the committed table of the newest Triton; empty without one.

    `gpu` and `triton` are added to the table's columns.
    """
    tables = {path.stem.split("-")[-1]: path for path in folder.glob("resources-triton-*.csv")}
    if not tables:
        return []
    newest = max(tables, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
    lines = tables[newest].read_text().splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("variant,")), len(lines))
    found = csv.DictReader(lines[start:])
    return [
        row | {"gpu": ARCHITECTURES[row["architecture"]], "triton": newest}
        for row in found
        if row["architecture"] in ARCHITECTURES and row.get("status") == "ok" and row.get("sem", "relaxed") != "acq_rel"
    ]


def highlighted(code: str) -> str:
    """The code as HTML; names and punctuation, which no style colours, stand without a tag."""
    text = pygments.highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
    return re.sub(r'<span class="(?:n|p|w)">([^<]*)</span>', r"\1", text)


def source_diff(old: str, new: str, old_name: str, new_name: str) -> tuple[str, int]:
    """A unified diff of kernels and launches as HTML, and how many lines it adds or takes away.

    Docstring and card are left out: the page shows them in words.
    """
    bodies = [text[_first_kernel(text) :].splitlines() for text in (old, new)]
    lines = list(difflib.unified_diff(*bodies, old_name, new_name, lineterm="", n=3))
    kinds = {"+": "ins", "-": "del", "@": "place"}
    shown = []
    for number, line in enumerate(lines):
        kind = "place" if number < 2 else kinds.get(line[:1], "same")
        shown.append(f'<span class="{kind}">{html.escape(line) or " "}</span>')
    return "".join(shown), sum(line[:1] in "+-" for line in lines[2:])


def _first_kernel(text: str) -> int:
    found = re.search(r"^@\w+\.jit", text, re.MULTILINE)
    return found.start() if found else 0


def speed(run: Run, name: str) -> Speed:
    """The speed-up of the candidate labelled with the bare name, as in the README's table."""
    if not source.has(run, name):
        return Speed(None, note="not measured")
    if name == source.BASELINE:
        return Speed(1.0, 1.0, 1.0, "by definition")
    values = list(run.speedups(name).values())
    lost = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in source.left_out(run, name).items())
    if not values:
        return Speed(None, note=lost or "not measured")
    return Speed(geometric_mean(values), *bootstrap_interval(values), lost)


# Tables


def headline(run: Run | None) -> list[dict[str, Any]]:
    """A row for each problem and candidate of the headline experiment."""
    if run is None:
        return []
    lines = []
    for problem in dict.fromkeys(row.problem for row in run.rows):
        base = run.medians(source.BASELINE).get(problem)
        for label in (c["label"] for c in run.candidates if c["variant"] != "empty"):
            row = run.by_candidate.get(run.index(label), {}).get(problem)
            line = {
                "problem": "x".join(map(str, problem)),
                "label": label,
                "status": row.status if row else "not measured",
            }
            if row and row.status == "ok" and row.samples:
                low, high = bootstrap_interval(row.samples, "median")
                flops = Problem(*problem).flops
                line |= {"us": row.median, "low": low, "high": high, "tflops": flops / row.median / 1e6}
                line |= {"speedup": base / row.median if base else None, "order": row.relies_on_dispatch_order}
            lines.append(line)
    return lines


def traced(results: Path) -> list[dict[str, Any]]:
    """Where the time of each traced launch went."""
    found = []
    for path in sorted(results.glob(f"{timeline.PREFIX}*{timeline.SUFFIX}")):
        run = timeline.read(path)
        if not run.facts.get("dry_run"):
            found.append(
                {"variant": run.facts["variant"], "problem": "x".join(map(str, run.facts["problem"]))}
                | run.summary()
                | {"overhead": run.facts["overhead"]}
            )
    newest = {(line["problem"], line["variant"]): line for line in found}
    return [newest[key] for key in sorted(newest)]


def readme_blocks(text: str) -> dict[str, str]:
    """The generated tables of the README as HTML, by name."""
    return {name: markdown(body) for name, body in _BLOCK.findall(text)}


def markdown(text: str) -> str:
    """HTML of what the generated parts are made of: tables, lists, paragraphs, links, code and bold."""
    out: list[str] = []
    for kind, lines in _paragraphs(text):
        if kind == "|":
            head, _, *body = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines]
            prose = [len(head) > MANY and any(_letters(line[at]) > PROSE for line in body) for at in range(len(head))]
            kinds = [' class="prose"' if it else "" for it in prose]
            cells = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in head)
            rest = "".join(
                "<tr>"
                + "".join(f"<td{kind}>{_inline(cell)}</td>" for kind, cell in zip(kinds, line, strict=True))
                + "</tr>"
                for line in body
            )
            out.append(f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{rest}</tbody></table></div>')
        elif kind == "-":
            out.append("<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>")
        else:
            out.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "\n".join(out)


def _letters(cell: str) -> int:
    """A cell's length as it is read: a link's target is not."""
    return len(re.sub(r"\]\([^)\s]+\)", "", cell))


def _paragraphs(text: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    fresh = True
    for line in text.splitlines():
        kind = line[:1] if line[:1] in ("|", "-") else "p"
        if not line.strip():
            fresh = True
        elif fresh or found[-1][0] != kind:
            found.append((kind, [line]))
            fresh = False
        else:
            found[-1][1].append(line)
    return found


def _inline(text: str) -> str:
    text = html.escape(text.replace("\\|", "|"), quote=False).replace("&lt;br&gt;", "<br>")
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)", _link, text)


def _link(found: re.Match[str]) -> str:
    """Links to variants and figures lead to their place on the page, others stay if they lead outside."""
    words, target = found[1], found[2]
    inside = re.fullmatch(r"(?:variants|figures)/(?:ablations/)?(\w+)\.(py|svg)", target)
    if inside:
        return f'<a href="#{"variant" if inside[2] == "py" else "figure"}-{inside[1]}">{words}</a>'
    return f'<a href="{target}">{words}</a>' if target.startswith("https://") else words


# The page


def render(results: Path = RESULTS, figures: Path = HERE, readme: Path = README) -> str:
    """The page's HTML."""
    data = all_data(results)
    pictures = [found for name in NAMES if (found := picture(name, figures, data, results))]
    populations = {name: run for name in source.POPULATIONS if (run := rows.newest_run(results, name))}
    newest = rows.newest_run(results, "headline")
    shown = [run for run in (*populations.values(), newest) if run]
    blocks = readme_blocks(readme.read_text()) if readme.exists() else {}
    blocks.pop("variants", None)  # the cards say the same and more
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["link"] = lambda name: f"variant-{name}"
    return environment.get_template("report.html.j2").render(
        entries=entries(populations),
        populations={name: text.split(":")[0] for name, text in source.POPULATIONS.items() if name in populations},
        averages={a.variant: a for a in source.thread_averages()},
        pictures=pictures,
        glyphs=glyphs(figures, pictures),
        missing=[name for name in NAMES if name not in {p.name for p in pictures}],
        data=on_page(data, pictures),
        headline=headline(newest),
        headline_run=newest,
        traced=traced(results),
        devices=sorted({source.describe(run).split(": ")[1] for run in shown}),
        runs=shown,
        measured=measured(shown),
        floors={run.id: run.floor_us for run in shown if run.floor_us is not None},
        blocks=blocks,
        titles={
            "steps": "Beyond the thread",
            "devices": "Several GPUs",
            "claims": "The thread's claims",
            "protocols": "Protocols",
            "resources": "Resources",
        },
        light=HtmlFormatter(style="default").get_style_defs(".code"),
        dark=HtmlFormatter(style="github-dark").get_style_defs(".code"),
    )


def measured(runs: list[Run]) -> list[str]:
    """When, at which commit and with which library the runs were made, as far as they say so."""
    found: dict[str, None] = {}
    for run in runs:
        header, versions = run.header, run.header["versions"]
        if versions.get("cublas"):
            found[f"cuBLAS {versions['cublas']}, driver {versions['driver']}"] = None
        if header.get("date"):
            found[f"measured {header['date'][:10]}, commit {header['commit']}"] = None
    return list(found)


def main(
    out: Annotated[Path, typer.Option(help="where the page goes")] = OUTPUT,
    results: Annotated[Path, typer.Option(help="where measurements lie")] = RESULTS,
) -> None:
    """Write one page with everything: variants, pictures, tables, data. It needs no network and opens from a file."""
    if not out.absolute().parent.is_dir():
        print(f"--out {out}: there is no folder {out.absolute().parent}", file=sys.stderr)
        raise SystemExit(2)
    began = time.monotonic()
    try:
        text = render(results)
    except DamagedRun as error:
        print(f"{out}: not written, {error}", file=sys.stderr)
        raise SystemExit(2) from None
    out.write_text(text)
    print(f"{out}: {len(text.encode()) / 1e6:.1f} MB in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    typer.run(main)
