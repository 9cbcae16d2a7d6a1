"""Write the Acme example's input: ``python -m examples.acme.generate --out DIR --locations L1,L2 --days 30``.

The code is ``headwater.demo.data``, which ``headwater demo`` has without a checkout; see there.
"""

from __future__ import annotations

from headwater.demo.data import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
