"""Runs a fuzz target with atheris, which is no dependency: ``pip install atheris``, then

    python -m tests.fuzz.run entry -max_total_time=600 /tmp/entries tests/store/hostile
    python -m tests.fuzz.run forged -max_total_time=600 /tmp/forged
    python -m tests.fuzz.run catalogue -max_total_time=600 /tmp/catalogues

Without a time it runs until a crash, or Ctrl-C. What it finds interesting goes to the first folder, which has to be
there; an input that crashes goes to the working folder, or where ``-artifact_prefix`` says. Only ragblend itself is
instrumented, since torch would take minutes and has nothing to do with what is read.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["ragblend"]):
    from tests.fuzz.catalogue import read_catalogue
    from tests.fuzz.entry import read_entry
    from tests.fuzz.forged import read_forged

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, {"entry": read_entry, "forged": read_forged, "catalogue": read_catalogue}[name])
    atheris.Fuzz()
