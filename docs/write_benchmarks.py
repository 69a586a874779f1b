"""Writes docs/benchmarks.md from what the benchmarks printed with ``--json``.

    python docs/write_benchmarks.py [FOLDER] [PAGE]

FOLDER (docs/benchmarks) holds one file for each command, named as in ``SECTIONS``. A section whose file is not there
says that it has not been measured, and how to do it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ragblend.bench.variants import ratio_shown

DOCS = Path(__file__).parent
Lines = Iterator[str]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "benchmarks"
    page = Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS / "benchmarks.md"
    page.write_text(page_of(folder), encoding="utf-8")


def page_of(folder: Path) -> str:
    """The whole page."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make benchmarks-page` from the JSON files in `docs/benchmarks`, each of which one command printed.",
        "Nothing here is typed by hand. A time is worth as much as the machine was quiet when it was taken: those that",
        "were taken beside other work are not here.",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", *section.about, "", "```console", f"$ {section.command}", "```", ""]
        path = folder / section.file
        if path.is_file():
            report = json.loads(path.read_text(encoding="utf-8"))
            lines += [*section.tables(report), "", machine_line(report["machine"]), ""]
            for picture in sorted(folder.glob(f"{path.stem}-*.png")):
                lines += [f"![{picture.stem.replace('-', ' ')}](benchmarks/{picture.name})", ""]
        else:
            lines += [
                f"Not measured on a quiet machine yet: run it into `docs/benchmarks/{section.file}`.",
                "",
            ]
    lines += ["## Selection policies", "", *STUDY, ""]
    for path in sorted(folder.glob("study-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"### {report['title']}", "", "```console", f"$ {report['command']}", "```", ""]
        lines += [*study(report), "", machine_line(report["machine"]), ""]
    return "\n".join(lines)


def machine_line(machine: dict[str, Any]) -> str:
    """What the figures above it were taken on."""
    return (
        f"{machine['model'] or 'The embedded model'} in {machine['dtype']}, {machine['threads']} of {machine['cores']} "
        f"cores of {machine['cpu']} ({machine['device']}); Python {machine['python']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, ragblend {machine['ragblend']} at commit {machine['commit']}; "
        f"{machine['date']}."
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def milliseconds(value: float) -> str:
    return f"{value * 1000:,.1f} ms"


def ttft(report: dict[str, Any]) -> Lines:
    yield from table(
        ["context", "policy", "ratio", "first token", "vs full", "rows computed"],
        [
            (
                f"{row['context']:,}",
                row["policy"],
                ratio_shown(row["policy"], row["ratio"]),
                f"{row['ttft_s']:.3f} s",
                f"{row['speedup_vs_full']:.1f}x",
                f"{row['computed_tokens']:,} of {row['prompt_tokens']:,}",
            )
            for row in report["rows"]
        ],
    )


def quality(report: dict[str, Any]) -> Lines:
    yield from table(
        ["policy", "ratio", "F1", "95%", "EM", "KL to full", "top-1", "gold NLL", "vs full", "n"],
        [
            (
                row["policy"],
                ratio_shown(row["policy"], row["ratio"]),
                f"{row['f1']:.3f}",
                " to ".join(f"{edge:.3f}" for edge in row["intervals"]["f1"]),
                f"{row['em']:.3f}",
                f"{row['kl_to_full']:.4f}",
                f"{row['top1_agreement']:.3f}",
                f"{row['gold_nll']:.3f}",
                f"{row['speedup_vs_full']:.1f}x",
                str(row["n"]),
            )
            for row in report["rows"]
        ],
    )


def compare(report: dict[str, Any]) -> Lines:
    yield from table(
        ["workload", "system", "first token", "vs transformers", "tokens/s", "memory", "reused", "same", "F1", "KL"],
        [
            (
                row["workload"],
                row["system"],
                f"{row['ttft_s']:.3f} s",
                number(row["speedup"], ".2f", "x"),
                number(row["tokens_per_s"], ".1f"),
                megabytes(row["peak_bytes"]),
                f"{row['reused_tokens']:,.0f} of {row['prompt_tokens']:,.0f}",
                number(row["same_answer"], ".2f"),
                number(row["answer_f1"], ".2f"),
                number(row["kl_to_full"], ".4f"),
            )
            for row in report["rows"]
        ],
    )
    yield ""
    yield from table(
        ["system", "weights", "reused of a prompt asked twice", "what it is"],
        [
            (
                system["system"],
                system["weights"],
                f"{system['repeated_tokens']:,} of {system['prompt_tokens']:,}" if system["present"] else "",
                "; ".join(f"{name} {value}" for name, value in system["facts"].items())
                if system["present"]
                else f"absent: {system['reason']}",
            )
            for system in report["systems"]
        ],
    )


def growth(report: dict[str, Any]) -> Lines:
    if report["note"]:
        yield f"Of the machine: {report['note']}."
        yield ""
    yield from table(
        ["chunks", "vectors", "open", "first search", "search", "lookup", "memory", "disk without KV"],
        [
            (
                f"{row['chunks']:,}",
                f"{row['vectors']:,}",
                *(milliseconds(row[name]) for name in ("open_s", "first_search_s", "search_s", "lookup_s")),
                megabytes(row["memory_bytes"]),
                megabytes(row["index_bytes"] + row["catalogue_bytes"]),
            )
            for row in report["library"]
        ],
    )
    yield ""
    yield from table(
        ["system", "context", "chunks", "first token", "memory"],
        [
            (
                row["system"],
                f"{row['context']:,}",
                str(row["chunks"]),
                f"{row['ttft_s']:.3f} s",
                megabytes(row["peak_bytes"]),
            )
            for row in (*report["contexts"], *report["chunks"])
        ],
    )
    yield ""
    yield from table(
        ["processes", "threads each", "first token", "requests/s", "memory"],
        [
            (
                str(row["processes"]),
                str(row["threads_each"]),
                f"{row['ttft_s']:.3f} s",
                f"{row['requests_per_s']:.2f}",
                megabytes(row["peak_bytes"]),
            )
            for row in report["processes"]
        ],
    )


def codecs(report: dict[str, Any]) -> Lines:
    yield from table(
        ["codec", "bytes a token", "of bfloat16", "write", "read", "place all layers"],
        [
            (
                row["codec"],
                f"{row['bytes_per_token']:,.0f}",
                f"{row['share_of_bf16']:.3f}",
                f"{row['write_mb_s']:,.0f} MB/s",
                f"{row['read_mb_s']:,.0f} MB/s",
                milliseconds(row["place_s"]),
            )
            for row in report["rows"]
        ],
    )


def codec_fidelity(report: dict[str, Any]) -> Lines:
    def less(row: dict[str, Any], metric: str, digits: int) -> str:
        difference = row["versus_raw"][metric]
        interval = f"{difference['low']:+.{digits}f} to {difference['high']:+.{digits}f}"
        return f"{difference['mean']:+.{digits}f} ({interval})" if row["codec"] != "raw" else ""

    yield from table(
        ["policy", "codec", "KL to full", "less raw's (95%)", "top-1", "F1", "less raw's (95%)", "n"],
        [
            (
                row["policy"],
                row["codec"] or "-",
                f"{row['kl_to_full']:.4f}",
                less(row, "kl_to_full", 4) if row["codec"] else "",
                f"{row['top1_agreement']:.3f}",
                f"{row['f1']:.3f}",
                less(row, "f1", 3) if row["codec"] else "",
                str(row["n"]),
            )
            for row in report["fidelity"]
        ],
    )


def study(report: dict[str, Any]) -> Lines:
    yield from table(
        [
            "behind",
            "selection",
            "ratio",
            "rows",
            "KL to full",
            "95%",
            "top-1",
            "gold NLL",
            "F1",
            "vs full",
            "EM",
            "same",
        ],
        [
            (
                row["prefilled_behind"] or "-",
                row["selection"],
                ratio_shown(row["selection"], row["ratio"]),
                f"{row['computed_tokens']['mean']:,.0f}",
                f"{row['kl_to_full']['mean']:.4f}",
                " to ".join(f"{row['kl_to_full'][edge]:.4f}" for edge in ("low", "high")),
                f"{row['top1_agreement']['mean']:.3f}",
                f"{row['gold_nll']['mean']:.2f}",
                f"{row['f1']['mean']:.3f}",
                f"{row['f1_less_full']['mean']:+.3f}",
                f"{row['em']['mean']:.3f}",
                f"{row['same_answer']:.0%}",
            )
            for row in report["rows"]
        ],
    )


def throughput(report: dict[str, Any]) -> Lines:
    yield from table(
        ["policy", "ratio", "requests/s", "first token (median)", "95%"],
        [
            (
                row["policy"],
                ratio_shown(row["policy"], row["ratio"]),
                f"{row['requests_per_s']:g}",
                f"{row['ttft_p50_s']:.2f} s",
                f"{row['ttft_p95_s']:.2f} s",
            )
            for row in report["rows"]
        ],
    )
    yield ""
    yield from table(
        ["policy", "ratio", "95% within", "requests/s"],
        [
            (
                row["policy"],
                ratio_shown(row["policy"], row["ratio"]),
                f"{row['bound_s']:g} s",
                f"{row['requests_per_s']:.2f}",
            )
            for row in report["bounds"]
        ],
    )


class Section(NamedTuple):
    file: str
    title: str
    about: tuple[str, ...]
    command: str
    tables: Callable[[dict[str, Any]], Lines]


STUDY = (
    "What to recompute, and what to prefill chunks behind. KL to full is along full prefill's own greedy answer,",
    "*vs full* is the difference of F1 to full prefill's, *same* the share of answers that equal it word for word.",
    "Studies run beside other work, so instead of seconds there are *rows*: how many of the prompt's were computed.",
    "One may be measured in parts, with fewer threads; its last line is then of the run that put them together.",
    "`query` scores the third quarter of the layers. Before commit 49b8e8cb33e2 it scored the last third, which is",
    "what that is called here; the forms of `query` in studies of that time score there, too.",
    "[policies.md](policies.md) says what the names mean and what was made of it.",
)
SECTIONS = (
    Section(
        "ttft.json",
        "Time to the first token",
        ("On stored chunks of the example handbook, against the faster of two full prefills.",),
        "ragblend bench ttft --contexts 1024,4096 --ratio 0.1 --repeats 5 --json",
        ttft,
    ),
    Section(
        "compare.json",
        "Beside other systems",
        (
            "The same token ids, threads and weights. *Same* is the share of answers that are word for word those of",
            "transformers' full prefill, *KL* the divergence from it along its answer, where there are logits.",
            "*Vs transformers* is the median of the prompts' ratios.",
            "Memory is the peak of a system's process, with what it maps and allocates ahead as far as it was touched.",
        ),
        "ragblend bench compare --context 4096 --ratio 0.1 --repeats 5 --json",
        compare,
    ),
    Section(
        "quality-tasks.json",
        "Questions that need several chunks",
        ("Made by `ragblend bench tasks --seed 0 --count 4 --out tasks.jsonl`.",),
        "ragblend bench quality --data tasks.jsonl --policies none,leading,hkvd,query --ratio 0.1 --json",
        quality,
    ),
    Section(
        "growth.json",
        "Cost as work grows",
        (
            "The library's KV and vectors are made up, five vectors a chunk, as in the example handbook. Here ragblend",
            "answers by its default, `query` at 0.15.",
        ),
        "ragblend bench growth --plots docs/benchmarks --json",
        growth,
    ),
    Section(
        "store.json",
        "Codecs",
        ("Bytes on the disk and the speed of each codec, durable writes and checked reads of 4,096 tokens of KV.",),
        "ragblend bench store --repeats 5 --json",
        codecs,
    ),
    Section(
        "codec-fidelity.json",
        "What codecs change in answers",
        ("XQuAD (English), the policy at 0.15. Compression changes nothing.",),
        "ragblend bench store --codecs raw,int8,fp8,int4 --data xquad_en.jsonl --limit 60 --policies none,query --json",
        codec_fidelity,
    ),
    Section(
        "throughput.json",
        "Throughput",
        (
            "Questions over the example handbook by Zipf's law, one engine. Each request is timed once; how long it",
            "would wait at a rate is worked out from these times.",
        ),
        "ragblend bench throughput --policies full,prefix,query --ratio 0.1 --requests 200 --json",
        throughput,
    ),
)

if __name__ == "__main__":
    main()
