"""Makes an OCI image of a directory, without a container engine: one layer, as an archive that engines load.

Usage: image.py ROOT OUT VERSION ARCHITECTURE. SOURCE_DATE_EPOCH is the date of everything in it. What is in ROOT/data belongs to USER.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

USER = 65532
OCI = "application/vnd.oci.image"


def layer(root, date):
    """All of the directory, as a tar archive that is the same each time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            member = tar.gettarinfo(path, name)
            member.mtime, member.uname, member.gname = date, "", ""
            member.uid = member.gid = USER if name == "data" or name.startswith("data/") else 0
            if member.isreg():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)
    return out.getvalue()


class Blobs:
    """What the image is made of, each part under the hash of its bytes."""

    def __init__(self):
        self.parts = {}

    def add(self, kind, content):
        digest = hashlib.sha256(content).hexdigest()
        self.parts[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, kind, value):
        return self.add(kind, json.dumps(value, sort_keys=True).encode())


def main():
    root, out, version, architecture = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    date = int(os.environ["SOURCE_DATE_EPOCH"])
    created = datetime.datetime.fromtimestamp(date, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs, plain = Blobs(), layer(root, date)
    packed = blobs.add("layer.v1.tar+gzip", gzip.compress(plain, 9, mtime=0))
    config = blobs.add_json("config.v1+json", {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "WorkingDir": "/data",
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Entrypoint": ["/usr/bin/taskwire"],
            "Cmd": ["serve", "/etc/taskwire/taskwire.toml", "--data", "/data/taskwire"],
            "ExposedPorts": {"8787/tcp": {}},
            "Volumes": {"/data": {}},
            "Labels": {"org.opencontainers.image.title": "taskwire", "org.opencontainers.image.version": version},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created": created, "created_by": "scripts/container.sh"}],
    })
    manifest = blobs.add_json("manifest.v1+json", {
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": [packed],
    })
    named = {
        **manifest,
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"taskwire:{version}"},
    }
    files = dict(blobs.parts)
    files["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    files["index.json"] = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [named]}).encode()
    with tarfile.open(out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), date, 0o644
            tar.addfile(member, io.BytesIO(content))


main()
