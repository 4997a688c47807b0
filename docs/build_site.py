"""Build or serve the site; run the examples whose pictures it shows.

python docs/build_site.py build      # into build/site/, strict: a broken link is an error
python docs/build_site.py serve
python docs/build_site.py examples   # all of them, for their pictures; `build` runs only those whose picture is missing
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
DOCS, EXAMPLES, PICTURES = ROOT / "docs", ROOT / "examples", ROOT / "docs" / "images" / "examples"
SITE = ROOT / "build" / "site"
ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>")


def present(nav: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a navigation without the pages that are not there, and without sections that are empty."""
    kept = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            target = present(target)
        if target and (isinstance(target, list) or (DOCS / str(target)).exists()):
            kept.append({title: target})
    return kept


def configuration() -> Path:
    """Write the configuration with the pages that there are beside mkdocs.yml; return its path."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    path = ROOT / ".mkdocs.present.yml"
    text = yaml.safe_dump(settings | {"nav": present(settings["nav"])}, sort_keys=False)
    # Unchanged, it keeps its time: the server watches it.
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def shown() -> list[str]:
    """Return the examples whose pictures the pages show, and the README."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *DOCS.glob("*.md")))
    return sorted(set(re.findall(r"images/examples/(\w+)\.png", pages)))


def run_examples(names: list[str]) -> None:
    """Run examples, each in a folder of its own, and keep their pictures, in few colours."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"examples/{name}.py", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, check=True)
            for picture in Path(folder).glob("*.png"):
                with Image.open(picture) as image:
                    image.convert("RGB").quantize(64).save(PICTURES / picture.name, optimize=True)


def check_self_contained(site: Path) -> None:
    """Fail if a page would load anything from elsewhere."""
    for page in site.rglob("*.html"):
        if found := ELSEWHERE.search(page.read_text(encoding="utf-8")):
            sys.exit(f"{page.relative_to(site)} loads from elsewhere: {found[0][:200]}")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("build", "serve", "examples"))
    task = parser.parse_args().task
    if task == "examples":
        run_examples(shown())
        return
    run_examples([name for name in shown() if not (PICTURES / f"{name}.png").exists()])
    if task == "build":
        shutil.rmtree(SITE, ignore_errors=True)
    options = ["--clean", "--strict"] if task == "build" else []
    command = [sys.executable, "-m", "zensical", task, "-f", str(configuration()), *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_COLOR": "1"})
    if done.returncode == 0 and task == "build":
        check_self_contained(SITE)
        print("The site is build/site/index.html")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
