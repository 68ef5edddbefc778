"""Fail unless a wheel contains the package alone."""

import sys
import zipfile

names = zipfile.ZipFile(sys.argv[1]).namelist()
strangers = [name for name in names if name.split("/")[0] != "distilface" and ".dist-info/" not in name]
missing = [name for name in ("distilface/demo_data/utterances.tsv", "distilface/py.typed") if name not in names]
if strangers or missing:
    sys.exit(f"wheel: unexpected {strangers}, missing {missing}")
print(f"wheel: {len(names)} files, all of distilface")
