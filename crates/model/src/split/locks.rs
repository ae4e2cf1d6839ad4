//! Lock files change with their manifests, and two tasks that change one of them never merge.

use std::collections::BTreeMap;

use super::{When, directory, file_name};
use crate::ByteText;

/// Lock files, and what they are made from.
const LOCKS: [(&str, &str); 16] = [
    ("Cargo.lock", "Cargo.toml"),
    ("package-lock.json", "package.json"),
    ("npm-shrinkwrap.json", "package.json"),
    ("yarn.lock", "package.json"),
    ("pnpm-lock.yaml", "package.json"),
    ("bun.lock", "package.json"),
    ("deno.lock", "deno.json"),
    ("poetry.lock", "pyproject.toml"),
    ("uv.lock", "pyproject.toml"),
    ("pdm.lock", "pyproject.toml"),
    ("Pipfile.lock", "Pipfile"),
    ("go.sum", "go.mod"),
    ("Gemfile.lock", "Gemfile"),
    ("composer.lock", "composer.json"),
    ("mix.lock", "mix.exs"),
    ("flake.lock", "flake.nix"),
];

/// Puts lock files and their manifests last, where the plan does not say when.
pub(super) fn set_apart(files: &mut BTreeMap<ByteText, When>) {
    let mut last = Vec::new();
    for path in files.keys() {
        let name = file_name(path);
        let found = LOCKS.iter().find(|(lock, _)| lock.as_bytes() == name);
        let Some((_, manifest)) = found else {
            continue;
        };
        let mut beside = directory(path).to_vec();
        if !beside.is_empty() {
            beside.push(b'/');
        }
        beside.extend(manifest.as_bytes());
        last.extend([path.clone(), ByteText(beside)]);
    }
    for path in last {
        if let Some(when) = files.get_mut(&path).filter(|when| **when == When::Between) {
            *when = When::Last;
        }
    }
}
