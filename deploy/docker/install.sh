#!/bin/sh
# install.sh IMAGE REQUIREMENT...: packages for one image, without those of the layers below, in /layer/rockoon.
# All third-party packages are there already: --no-index fails if a package needs one that is not.
set -eu
image=$1; shift
site=lib/$(python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
pip --python /rockoon/bin/python install --no-index --find-links /wheels --no-compile --prefix /layer/rockoon "$@"
python sbom.py "rockoon/$image" --debian /debian --packages "/layer/rockoon/$site" --packages "/rockoon/$site" \
    --jars "/rockoon/$site/pyspark/jars" > sbom.json
mv sbom.json /layer/rockoon/sbom.cdx.json
python layer.py packages /layer/rockoon

# Each program must start: a removed file or a stripped library that it needs fails the build.
export PYTHONPATH="/layer/rockoon/$site"
for program in /layer/rockoon/bin/rockoon*; do
    [ ! -x "$program" ] || "$program" --help > /dev/null
done
for main in "/layer/rockoon/$site"/rockoon*/__main__.py; do
    module=$(basename "$(dirname "$main")")
    [ ! -e "$main" ] || /rockoon/bin/python -m "$module" --help > /dev/null
done
