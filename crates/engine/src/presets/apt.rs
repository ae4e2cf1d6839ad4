//! `apt`: the archives that the host's own sources name, in both of apt's formats.

use std::path::{Path, PathBuf};

use ringfence_model::gate::IndexKind;

use super::draft::Draft;
use super::surroundings::{Setting, Surroundings, Text};
use super::{PresetError, Staged};

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
        let settings = if path.extension().is_some_and(|end| end == "sources") {
            stanzas(&text)
        } else {
            lines(&text)
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

/// Where apt's settings are inside.
const INSIDE: &str = "/.ringfence/apt";

/// The host's own sources without their passwords, and settings with which apt works as the agent:
/// what to put below `/.ringfence`, and the variable that leads there.
pub(super) fn staged(surroundings: &Surroundings) -> Result<Vec<Staged>, PresetError> {
    let directory = |name: &str| (format!("apt{name}"), None);
    let file = |name: &str, content: String| (format!("apt/{name}"), Some(content.into_bytes()));
    let mut staged = vec![
        directory(""),
        directory("/apt.conf.d"),
        directory("/preferences.d"),
        directory("/sources.list.d"),
        file("apt.conf", SETTINGS.replace("INSIDE", INSIDE)),
        file("status", String::new()),
    ];
    for path in files(surroundings)? {
        let (Some(text), Some(name)) = (surroundings.read(&path)?, path.file_name()) else {
            continue;
        };
        let name = name.to_string_lossy();
        let name = match &*name {
            "sources.list" => name.into_owned(),
            name => format!("sources.list.d/{name}"),
        };
        staged.push(file(&name, without_credentials(&text.content)));
    }
    Ok(staged)
}

pub(super) fn variable() -> (&'static str, String) {
    ("APT_CONFIG", format!("{INSIDE}/apt.conf"))
}

/// Everything that apt writes is in `/tmp`; it is nobody but the agent, and no package is installed.
const SETTINGS: &str = r#"Dir::Etc "INSIDE/";
Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d/";
Dir::State "/tmp/";
Dir::State::lists "/tmp/apt-lists/";
Dir::State::status "INSIDE/status";
Dir::Cache "/tmp/";
Dir::Cache::archives "/tmp/apt-archives/";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "/tmp/";
APT::Sandbox::User "";
"#;

/// The same text with what stands between `://` and `@` of an address taken out.
fn without_credentials(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        plain.push_str(before);
        let end = after.find(|c: char| c == '/' || c.is_whitespace());
        let authority = &after[..end.unwrap_or(after.len())];
        rest = match authority.rfind('@') {
            Some(user) => &after[user + 1..],
            None => after,
        };
    }
    plain.push_str(rest);
    plain
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
