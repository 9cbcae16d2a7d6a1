"""The Acme dataflow over the files that ``examples.acme.generate`` writes beside this file.

The dataflow itself is ``headwater.demo.flow``, which ``headwater demo`` runs without a checkout.
"""

from __future__ import annotations

from pathlib import Path

from headwater.demo.flow import acme

HERE = Path(__file__).resolve().parent

flow = acme(str(HERE / "data"), results=str(HERE / "results"))
