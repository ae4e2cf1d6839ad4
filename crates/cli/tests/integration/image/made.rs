//! Images that a test makes, byte by byte.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use ringfence_model::hex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A tar: names that end with `/` are directories, contents that begin with `-> ` are links.
pub fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, content) in entries {
        let (kind, link, content) = match (name.ends_with('/'), content.strip_prefix(b"-> ")) {
            (true, _) => (b'5', &b""[..], &b""[..]),
            (false, Some(link)) => (b'2', link, &b""[..]),
            (false, None) => (b'0', &b""[..], *content),
        };
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000755");
        header[108..115].copy_from_slice(b"0000000");
        header[116..123].copy_from_slice(b"0000000");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000001750");
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link);
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&header);
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// Bytes that do not get smaller, the same each time.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// All that a registry needs to have of an image.
#[derive(Clone, Debug)]
pub struct Made {
    pub tars: Vec<Vec<u8>>,
    /// Layers as they are sent.
    pub blobs: Vec<Vec<u8>>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image of these tars, the lowest first, for this machine.
pub fn image(tars: &[Vec<u8>]) -> Made {
    image_for(tars, architecture())
}

pub fn image_for(tars: &[Vec<u8>], architecture: &str) -> Made {
    let blobs: Vec<Vec<u8>> = tars.iter().map(|tar| gzip(tar)).collect();
    let diffs: Vec<String> = tars.iter().map(|tar| digest(tar)).collect();
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Env": ["PATH=/bin", "LANG=C"], "Cmd": ["/bin/sh"], "WorkingDir": "/srv" },
        "rootfs": { "type": "layers", "diff_ids": diffs },
    });
    let config = config.to_string().into_bytes();
    let manifest = manifest(&config, &blobs).to_string().into_bytes();
    Made {
        tars: tars.to_vec(),
        blobs,
        config,
        manifest,
    }
}

pub fn manifest(config: &[u8], blobs: &[Vec<u8>]) -> Value {
    let descriptor = |bytes: &[u8], kind: &str| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() });
    let layers: Vec<Value> = blobs
        .iter()
        .map(|blob| descriptor(blob, "application/vnd.oci.image.layer.v1.tar+gzip"))
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    })
}

/// An index with this manifest for each of these machines.
pub fn index(manifest: &[u8], machines: &[&str]) -> Vec<u8> {
    let manifests: Vec<Value> = machines
        .iter()
        .map(|machine| {
            json!({
                "mediaType": OCI_MANIFEST,
                "digest": digest(manifest),
                "size": manifest.len(),
                "platform": { "os": "linux", "architecture": machine },
            })
        })
        .collect();
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests });
    index.to_string().into_bytes()
}

/// Two layers: a program and its library, then one file less, one more and one changed.
pub fn usual() -> Made {
    image(&[
        tar(&[
            ("bin/", b""),
            ("bin/tool", b"#!/bin/sh\necho tool\n"),
            ("bin/sh", b"-> /bin/tool"),
            ("etc/old", b"old"),
            ("etc/changed", b"first"),
            ("big", &noise(300_000, 7)),
        ]),
        tar(&[
            ("etc/.wh.old", b""),
            ("etc/changed", b"second"),
            ("srv/", b""),
        ]),
    ])
}
