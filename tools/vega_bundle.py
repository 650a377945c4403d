"""Write Vega, Vega-Lite and Vega-Embed as one compressed script for the report page.

`python tools/vega_bundle.py` takes them from vl-convert-python, which also draws the PNG files, so that page and files
are drawn by the same versions. Run it after an update of that package.
"""

from __future__ import annotations

import gzip
from pathlib import Path

OUT = Path(__file__).parent.parent / "src" / "headwater" / "report" / "vega.js.gz"


def main() -> None:
    import vl_convert

    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    OUT.write_bytes(gzip.compress(code.encode(), 9, mtime=0))
    versions = (
        vl_convert.get_vega_version(),
        vl_convert.get_vegalite_versions()[-1],
        vl_convert.get_vega_embed_version(),
    )
    print(f"{OUT.name}: {OUT.stat().st_size:,} bytes, Vega {versions[0]}, Vega-Lite {versions[1]}, Embed {versions[2]}")


if __name__ == "__main__":
    main()
