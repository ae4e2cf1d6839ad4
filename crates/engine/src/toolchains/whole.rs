//! Managers whose directories are shown as they are, because they choose versions themselves or
//! have only one.

use std::path::{Path, PathBuf};

use super::{Host, Pinned, Shown, Toolchain, programs};

pub(super) fn all(host: &Host<'_>, pins: &[Pinned]) -> Vec<Toolchain> {
    let mut found: Vec<Toolchain> = rustup(host, pins).into_iter().collect();
    found.extend(uv(host));
    for (manager, variables, homes, below) in [
        ("bun", &["BUN_INSTALL"][..], &[".bun"][..], &["bin"][..]),
        ("deno", &["DENO_INSTALL"], &[".deno"], &["bin"]),
        ("go tools", &["GOPATH"], &["go"], &["bin"]),
        // Links in `bin` lead to the others.
        (
            "ghcup",
            &[],
            &[".ghcup"],
            &["bin", "ghc", "cabal", "hls", "stack"],
        ),
    ] {
        let Some((base, from)) = host.base(variables, homes) else {
            continue;
        };
        let bin = base.join("bin");
        if programs(&bin).is_empty() {
            continue;
        }
        let parts: Vec<PathBuf> = below.iter().map(|name| base.join(name)).collect();
        found.push(Toolchain {
            manager,
            version: None,
            why: format!("in {from}"),
            programs: programs(&bin),
            mounts: parts.iter().filter_map(|part| host.shown(part)).collect(),
            path: vec![bin],
            set: Vec::new(),
            notes: Vec::new(),
        });
    }
    found.extend(file(
        host,
        "pnpm",
        &["PNPM_HOME"],
        &[".local/share/pnpm"],
        &["pnpm"],
    ));
    found
}

/// Toolchains and the proxies that choose one of them, as `rust-toolchain.toml` says. `CARGO_HOME`
/// is not theirs: it is written to, and it has the tokens of registries.
fn rustup(host: &Host<'_>, pins: &[Pinned]) -> Option<Toolchain> {
    let (base, from) = host.base(&["RUSTUP_HOME"], &[".rustup"])?;
    let toolchains = base.join("toolchains");
    let mut mounts: Vec<Shown> = host.shown(&toolchains).into_iter().collect();
    // The proxies read the first, and want to make the second where it is not there.
    for name in ["settings.toml", "update-hashes"] {
        mounts.extend(host.shown(&base.join(name)));
    }
    let proxies = host
        .base(&["CARGO_HOME"], &[".cargo"])
        .map(|(cargo, _)| cargo.join("bin"))
        .filter(|bin| !programs(bin).is_empty());
    let mut path = Vec::new();
    let mut notes = Vec::new();
    if let Some(bin) = proxies {
        mounts.extend(host.shown(&bin));
        path.push(bin);
    }
    let mut brought: Vec<String> = path.iter().flat_map(|bin| programs(bin)).collect();
    brought.extend(["cargo", "rustc"].map(str::to_owned));
    for link in links(&toolchains) {
        notes.push(format!(
            "`{link}` is a link to elsewhere, which is not there inside"
        ));
    }
    if let Some(pin) = pins.iter().find(|pin| pin.program == "cargo")
        && !has(&toolchains, &pin.version)
    {
        notes.push(format!(
            "{} wants {}, which is not there",
            pin.place, pin.version
        ));
    }
    Some(Toolchain {
        manager: "rustup",
        version: None,
        why: format!("in {from}; it chooses the toolchain itself"),
        programs: brought,
        mounts,
        path,
        set: vec![("RUSTUP_HOME", base.to_string_lossy().into_owned())],
        notes,
    })
}

/// Whether rustup has a toolchain of this name: `1.95` is `1.95-x86_64-unknown-linux-gnu` or
/// `1.95.0-…`.
fn has(toolchains: &Path, version: &str) -> bool {
    entries(toolchains).iter().any(|(name, _)| {
        let rest = name.strip_prefix(version);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
    })
}

/// Links that lead out of their directory, such as those of `rustup toolchain link`.
fn links(directory: &Path) -> Vec<String> {
    let real = directory.canonicalize().unwrap_or_default();
    let leads_out = |name: &String| {
        let target = directory.join(name).canonicalize();
        !target.is_ok_and(|target| target.starts_with(&real))
    };
    let links = entries(directory).into_iter();
    let links = links.filter(|(_, kind)| kind.is_symlink());
    links.map(|(name, _)| name).filter(leads_out).collect()
}

fn entries(directory: &Path) -> Vec<(String, std::fs::FileType)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let one = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((
            entry.file_name().into_string().ok()?,
            entry.file_type().ok()?,
        ))
    };
    entries.take(super::MOST_ENTRIES).filter_map(one).collect()
}

/// Only its programs: beside its other files are the credentials of `uv auth`, and beside its
/// programs those of everybody else.
fn uv(host: &Host<'_>) -> Option<Toolchain> {
    let variables = ["UV_INSTALL_DIR", "XDG_BIN_HOME"];
    file(host, "uv", &variables, &[".local/bin"], &["uv", "uvx"])
}

/// Single programs of a directory that has much else.
fn file(
    host: &Host<'_>,
    manager: &'static str,
    variables: &[&str],
    homes: &[&str],
    names: &[&str],
) -> Option<Toolchain> {
    let (bin, from) = host.base(variables, homes)?;
    let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    let files: Vec<PathBuf> = names
        .iter()
        .map(|name| bin.join(name))
        .filter(is_file)
        .collect();
    let mounts: Vec<Shown> = files.iter().filter_map(|file| host.shown(file)).collect();
    let name = |shown: &Shown| Some(shown.inside.file_name()?.to_str()?.to_owned());
    let programs: Vec<String> = mounts.iter().filter_map(name).collect();
    (!mounts.is_empty()).then(|| Toolchain {
        manager,
        version: None,
        why: format!("in {from}"),
        programs,
        path: vec![bin],
        mounts,
        set: Vec::new(),
        notes: Vec::new(),
    })
}
