//! `apt`: the archives that the host's own sources name, in both of apt's formats.

use std::path::{Path, PathBuf};

use ringfence_model::gate::IndexKind;

use super::PresetError;
use super::draft::Draft;
use super::surroundings::{Setting, Surroundings, Text};

/// BOUND: files in the directory of sources.
const MAX_FILES: usize = 1000;
/// A list of addresses in a file of the host.
const MIRROR_FILE: &str = "mirror+file:";

pub(super) fn fill(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let mut found = false;
    for path in files(surroundings)? {
        let Some(text) = surroundings.read(&path)? else {
            continue;
        };
        let settings = match path.extension().is_some_and(|end| end == "sources") {
            true => stanzas(&text),
            false => lines(&text),
        };
        for setting in settings {
            found = true;
            archive(surroundings, draft, &setting)?;
        }
    }
    if !found {
        return Err(PresetError::NoClient {
            preset: draft.preset,
            client: "sources of apt in `/etc/apt`",
        });
    }
    Ok(())
}

fn files(surroundings: &Surroundings) -> Result<Vec<PathBuf>, PresetError> {
    let mut files = Vec::new();
    let directory = surroundings.system("etc/apt/sources.list.d");
    for entry in std::fs::read_dir(&directory).into_iter().flatten() {
        let path = entry
            .map_err(|source| PresetError::Read {
                path: directory.clone(),
                source,
            })?
            .path();
        // apt reads these and nothing else.
        let ends = |end: &str| path.extension().is_some_and(|own| own == end);
        if ends("list") || ends("sources") {
            files.push(path);
        }
    }
    files.sort();
    files.truncate(MAX_FILES);
    files.insert(0, surroundings.system("etc/apt/sources.list"));
    Ok(files)
}

fn archive(
    surroundings: &Surroundings,
    draft: &mut Draft,
    setting: &Setting,
) -> Result<(), PresetError> {
    if let Some(path) = setting.value.strip_prefix(MIRROR_FILE) {
        let path = Path::new(path.trim_start_matches("//"));
        let path = surroundings.system(path.to_string_lossy().trim_start_matches('/'));
        let Some(text) = surroundings.read(&path)? else {
            return Ok(());
        };
        for (number, line) in (1..).zip(text.content.lines()) {
            // Options follow after a tab.
            let uri = line.split_whitespace().next().unwrap_or_default();
            add(draft, &text.setting(uri, number));
        }
        return Ok(());
    }
    // The list of mirrors is fetched like any file.
    let value = setting.value.strip_prefix("mirror+").map(str::to_owned);
    let value = value.or_else(|| {
        let rest = setting.value.strip_prefix("mirror://")?;
        Some(format!("http://{rest}"))
    });
    match value {
        None => add(draft, setting),
        Some(value) => {
            draft.note(format!(
                "{}: the mirrors in this list are not known here; name them in your own policy file",
                setting.from
            ));
            let setting = Setting {
                value,
                ..setting.clone()
            };
            add(draft, &setting);
        }
    }
    Ok(())
}

fn add(draft: &mut Draft, setting: &Setting) {
    if let Some(address) = draft.address(setting) {
        draft.index(IndexKind::Apt, &address, setting);
    }
}

/// `deb [options] URI suite components`, one a line.
fn lines(text: &Text) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.content.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((kind, rest)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        if !matches!(kind, "deb" | "deb-src") {
            continue;
        }
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        let uri = rest.split_whitespace().next();
        settings.extend(uri.map(|uri| text.setting(uri, number)));
    }
    settings
}

/// Paragraphs of `Field: value`.
fn stanzas(text: &Text) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut own: Vec<Setting> = Vec::new();
    let mut enabled = true;
    let mut field = String::new();
    // An empty line at the end closes the last paragraph.
    for (number, line) in (1..).zip(text.content.lines().chain([""])) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            settings.extend(std::mem::take(&mut own).into_iter().filter(|_| enabled));
            enabled = true;
            field.clear();
            continue;
        }
        let value = match line.split_once(':') {
            Some((name, value)) if !line.starts_with([' ', '\t']) => {
                field = name.trim().to_ascii_lowercase();
                value
            }
            _ => line,
        };
        match field.as_str() {
            "uris" => own.extend(
                value
                    .split_whitespace()
                    .map(|uri| text.setting(uri, number)),
            ),
            "enabled" => {
                let value = value.trim().to_ascii_lowercase();
                enabled = !matches!(
                    value.as_str(),
                    "no" | "false" | "without" | "off" | "disable"
                );
            }
            _ => {}
        }
    }
    settings
}
