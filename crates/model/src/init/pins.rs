//! Versions of programs that a repository pins.

use serde::Serialize;
use serde_json::Value;

use super::{Files, Proposed, Said, Seen, plain, text};
use crate::strict;

/// Files that pin versions, at the top of a folder.
const FILES: &[&str] = &[
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    ".nvmrc",
    ".node-version",
    ".python-version",
    ".ruby-version",
    ".java-version",
    ".go-version",
    "rust-toolchain.toml",
    "rust-toolchain",
];

/// BOUND: a version that is longer is none.
const MAX_VERSION: usize = 64;

/// A version of a program, in the words of the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pin {
    pub program: &'static str,
    pub version: String,
    pub place: &'static str,
}

pub(super) fn is_one(name: &str) -> bool {
    FILES.contains(&name)
}

/// Gives each program that is needed the version that is pinned, the strongest first; a pin alone
/// is a need, too.
pub(super) fn take(own: &mut Proposed, files: &Files) {
    for Pin {
        program,
        version,
        place,
    } in all(files)
    {
        // What a package.json says of its own client matters where that client is used.
        if place != "package.json" || program == "node" {
            own.need(program, place);
        }
        let need = own.needs.iter_mut().find(|need| need.program == program);
        if let Some(need) = need.filter(|need| need.version.is_none()) {
            need.version = Some(Said {
                value: version,
                why: place.to_owned(),
            });
        }
    }
    if own.image.is_none() {
        own.possible_image = possible_image(own);
    }
}

/// All pins, the most specific files first.
fn all(files: &Files) -> Vec<Pin> {
    let mut pins = Vec::new();
    let mut pin = |program, version: &str, place| {
        let version = version.trim().trim_matches(['"', '\'']);
        let fine = |c: char| c.is_ascii_alphanumeric() || "._-+*/<>=~^, |".contains(c);
        if plain(version).is_some() && version.len() <= MAX_VERSION && version.chars().all(fine) {
            pins.push(Pin {
                program,
                version: version.to_owned(),
                place,
            });
        }
    };
    for (place, program) in [
        (".nvmrc", "node"),
        (".node-version", "node"),
        (".python-version", "python3"),
        (".ruby-version", "ruby"),
        (".java-version", "java"),
        (".go-version", "go"),
    ] {
        let lines = text(files, place).unwrap_or_default().lines();
        let mut lines = lines.map(str::trim).filter(|line| !line.starts_with('#'));
        if let Some(line) = lines.find(|line| !line.is_empty()) {
            pin(program, line, place);
        }
    }
    for place in ["rust-toolchain.toml", "rust-toolchain"] {
        let content = text(files, place).unwrap_or_default();
        let channel = content
            .parse::<toml::Table>()
            .ok()
            .and_then(|table| Some(table.get("toolchain")?.get("channel")?.as_str()?.to_owned()));
        let line = content.lines().next().filter(|line| !line.contains('['));
        if let Some(version) = channel.as_deref().or(line) {
            pin("cargo", version, place);
        }
    }
    for line in text(files, ".tool-versions").unwrap_or_default().lines() {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        if let (Some(tool), Some(version)) = (words.next().and_then(program), words.next()) {
            pin(tool, version, ".tool-versions");
        }
    }
    for place in ["mise.toml", ".mise.toml"] {
        let table = text(files, place).and_then(|text| text.parse::<toml::Table>().ok());
        let tools = table
            .as_ref()
            .and_then(|table| table.get("tools")?.as_table());
        for (tool, version) in tools.into_iter().flatten() {
            let version = version
                .as_str()
                .or_else(|| version.get("version")?.as_str());
            if let (Some(tool), Some(version)) = (program(tool), version) {
                pin(tool, version, place);
            }
        }
    }
    if let Some(Seen::Bytes(bytes)) = files.get("package.json")
        && let Ok(package) = strict::value(bytes)
    {
        let said = |table: &str| package.get(table)?.get("node").and_then(Value::as_str);
        if let Some(version) = said("volta").or_else(|| said("engines")) {
            pin("node", version, "package.json");
        }
        // `pnpm@9.15.0+sha512.…`
        let manager = package.get("packageManager").and_then(Value::as_str);
        if let Some((name, version)) = manager.and_then(|text| text.split_once('@'))
            && let Some(name) = ["pnpm", "yarn", "bun"].into_iter().find(|own| *own == name)
        {
            let version = version.split('+').next().unwrap_or(version);
            pin(name, version, "package.json");
        }
    }
    for line in text(files, "go.mod").unwrap_or_default().lines() {
        if let Some(version) = line
            .strip_prefix("toolchain go")
            .or(line.strip_prefix("go "))
        {
            pin("go", version, "go.mod");
            break;
        }
    }
    let project = text(files, "pyproject.toml").and_then(|text| text.parse::<toml::Table>().ok());
    let python = project
        .as_ref()
        .and_then(|table| table.get("project")?.get("requires-python")?.as_str());
    if let Some(version) = python {
        pin("python3", version, "pyproject.toml");
    }
    pins
}

/// The program that a manager of versions means.
fn program(tool: &str) -> Option<&'static str> {
    Some(match tool {
        "nodejs" | "node" => "node",
        "python" => "python3",
        "rust" => "cargo",
        "golang" | "go" => "go",
        "ruby" => "ruby",
        "java" => "java",
        "bun" => "bun",
        "deno" => "deno",
        "uv" => "uv",
        "poetry" => "poetry",
        "pnpm" => "pnpm",
        "php" => "php",
        "elixir" => "mix",
        "julia" => "julia",
        "maven" => "mvn",
        "gradle" => "gradle",
        _ => return None,
    })
}

/// An image for a project of one language whose version is known.
fn possible_image(own: &Proposed) -> Option<Said> {
    const IMAGES: &[(&str, &str, &str)] = &[
        ("python3", "python", "-slim"),
        ("node", "node", "-slim"),
        ("cargo", "rust", "-slim"),
        ("go", "golang", ""),
        ("ruby", "ruby", "-slim"),
        ("mix", "elixir", "-slim"),
    ];
    let known = |program: &str| IMAGES.iter().find(|(name, ..)| *name == program);
    let mut languages = own
        .needs
        .iter()
        .filter_map(|need| Some((need, known(&need.program)?)));
    let (need, (_, image, suffix)) = languages.next()?;
    let pinned = need.version.as_ref()?;
    // A range or a name (`lts/*`, `stable`) is no tag.
    let version = pinned.value.trim_start_matches('v');
    let plain = |c: char| c.is_ascii_digit() || c == '.';
    if languages.next().is_some() || version.is_empty() || !version.chars().all(plain) {
        return None;
    }
    Some(Said {
        value: format!("{image}:{version}{suffix}"),
        why: pinned.why.clone(),
    })
}
