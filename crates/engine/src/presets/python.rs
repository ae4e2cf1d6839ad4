//! `pypi`: the indexes of pip and uv.
//!
//! Each client has its own settings. Where only one of them is there, the other is sent to the same
//! index inside.

use std::path::PathBuf;

use ringfence_model::gate::IndexKind;
use ringfence_model::policy::network::Origin;
use toml::de::DeTable;

use super::PresetError;
use super::client::{Hear, Question};
use super::draft::Draft;
use super::ini::{Continued, entries};
use super::surroundings::{Setting, Surroundings, Told};
use super::toml_lines::Tables;

/// What a client asks.
#[derive(Debug, Default)]
struct Indexes {
    main: Option<Setting>,
    more: Vec<Setting>,
    /// Pages and directories with links to files.
    links: Vec<Setting>,
    /// Hosts that are asked without certificates.
    trusted: Vec<String>,
}

pub(super) fn fill(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let mut pip = pip_settings(surroundings)?;
    let mut uv = uv_settings(surroundings)?;
    if pip.main.is_none() {
        pip.main = ask_pip(surroundings)?;
    }
    if uv.main.is_none() {
        uv.main = ask_uv(surroundings)?;
    }
    if pip.main.is_none() && uv.main.is_none() {
        return Err(PresetError::NoClient {
            preset: draft.preset,
            client: "`pip`, `python3` with pip, or `uv`",
        });
    }
    let pip_main = pip.main.clone().or_else(|| uv.main.clone());
    let uv_main = uv.main.clone().or_else(|| pip.main.clone());
    for (main, more, names) in [
        (
            pip_main,
            &pip.more,
            ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"],
        ),
        (uv_main, &uv.more, ["UV_DEFAULT_INDEX", "UV_INDEX"]),
    ] {
        let main: Vec<Setting> = main.into_iter().collect();
        for (settings, name) in [(&main, names[0]), (more, names[1])] {
            let urls: Vec<String> = settings
                .iter()
                .filter_map(|setting| {
                    let address = draft.address(setting)?;
                    draft.index(IndexKind::Simple, &address, setting);
                    Some(address.url())
                })
                .collect();
            if !urls.is_empty() {
                draft.set(name, urls.join(" "));
            }
        }
    }
    for setting in pip.links.iter().chain(&uv.links) {
        // Directories of the host are not inside.
        if let Some(address) = draft.address(setting) {
            draft.index(IndexKind::Simple, &address, setting);
        }
    }
    if !pip.trusted.is_empty() {
        draft.set("PIP_TRUSTED_HOST", pip.trusted.join(" "));
    }
    draft.set("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    Ok(())
}

/// The files of pip, the weakest first.
fn pip_files(surroundings: &Surroundings) -> Vec<PathBuf> {
    let named = surroundings.variable("PIP_CONFIG_FILE");
    if named == Some("/dev/null") {
        return Vec::new();
    }
    let named = surroundings.directory("PIP_CONFIG_FILE");
    let mut files: Vec<PathBuf> = config_directories(surroundings)
        .map(|directory| directory.join("pip/pip.conf"))
        .collect();
    files.push(surroundings.system("etc/pip.conf"));
    // As pip does: a file that is named and there stands for the user's.
    if named.as_ref().is_none_or(|path| !path.exists()) {
        files.extend(surroundings.home(".pip/pip.conf"));
        files.extend(surroundings.config("pip/pip.conf"));
    }
    files.extend(named);
    files
}

/// Directories of the system's settings, the weakest first.
fn config_directories(surroundings: &Surroundings) -> impl Iterator<Item = PathBuf> {
    let directories: Vec<PathBuf> = match surroundings.variable("XDG_CONFIG_DIRS") {
        Some(list) => std::env::split_paths(list)
            .filter(|path| path.is_absolute())
            .collect(),
        None => vec![surroundings.system("etc/xdg")],
    };
    directories.into_iter().rev()
}

fn pip_settings(surroundings: &Surroundings) -> Result<Indexes, PresetError> {
    let mut indexes = Indexes::default();
    for path in pip_files(surroundings) {
        let Some(text) = surroundings.read(&path)? else {
            continue;
        };
        let mut entries = entries(&text.content, Continued::ByIndent);
        entries.retain(|entry| matches!(entry.section.as_str(), "global" | "install"));
        // A section of the command is stronger than the one of all commands.
        entries.sort_by_key(|entry| entry.section == "install");
        for entry in entries {
            let key = entry.key.to_ascii_lowercase().replace('_', "-");
            let words = || entry.value.split_whitespace();
            let settings =
                || -> Vec<Setting> { words().map(|word| text.setting(word, entry.line)).collect() };
            match key.as_str() {
                "index-url" => indexes.main = settings().into_iter().next().or(indexes.main),
                "extra-index-url" => indexes.more = settings(),
                "find-links" => indexes.links = settings(),
                "trusted-host" => indexes.trusted = words().map(str::to_owned).collect(),
                _ => {}
            }
        }
    }
    if let Some(setting) = surroundings.setting("PIP_INDEX_URL") {
        indexes.main = Some(setting);
    }
    let several = |name| surroundings.setting(name).map(|setting| split(&setting));
    if let Some(settings) = several("PIP_EXTRA_INDEX_URL") {
        indexes.more = settings;
    }
    if let Some(settings) = several("PIP_FIND_LINKS") {
        indexes.links = settings;
    }
    if let Some(hosts) = surroundings.variable("PIP_TRUSTED_HOST") {
        indexes.trusted = hosts.split_whitespace().map(str::to_owned).collect();
    }
    Ok(indexes)
}

/// Several values in one.
fn split(setting: &Setting) -> Vec<Setting> {
    let with = |word: &str| Setting {
        value: word.to_owned(),
        ..setting.clone()
    };
    setting.value.split_whitespace().map(with).collect()
}

fn uv_settings(surroundings: &Surroundings) -> Result<Indexes, PresetError> {
    let mut indexes = Indexes::default();
    let named = surroundings.directory("UV_CONFIG_FILE");
    let mut files: Vec<PathBuf> = Vec::new();
    if surroundings.variable("UV_NO_CONFIG").is_none() {
        // The system's are tried in order, and one of them counts.
        let of_system = config_directories(surroundings)
            .map(|directory| directory.join("uv/uv.toml"))
            .chain([surroundings.system("etc/uv/uv.toml")])
            .find(|path| path.exists());
        files.extend(of_system);
        files.extend(surroundings.config("uv/uv.toml"));
    }
    // A file that is named stands for all others.
    if let Some(named) = named {
        files = vec![named];
    }
    for path in files {
        let Some(text) = surroundings.read(&path)? else {
            continue;
        };
        let tables = Tables::read(&text)?;
        read_uv(&tables, tables.top(), &mut indexes);
        if let Some(pip) = Tables::table(tables.top(), "pip") {
            read_uv(&tables, pip, &mut indexes);
        }
    }
    for name in ["UV_INDEX_URL", "UV_DEFAULT_INDEX"] {
        if let Some(setting) = surroundings.setting(name) {
            indexes.main = Some(setting);
        }
    }
    for name in ["UV_EXTRA_INDEX_URL", "UV_INDEX"] {
        for mut setting in surroundings.setting(name).iter().flat_map(split) {
            setting.value = without_name(&setting.value).to_owned();
            indexes.more.push(setting);
        }
    }
    if let Some(setting) = surroundings.setting("UV_FIND_LINKS") {
        // A comma may part them as well.
        let setting = Setting {
            value: setting.value.replace(',', " "),
            ..setting
        };
        indexes.links.extend(split(&setting));
    }
    Ok(indexes)
}

/// `name=https://…` without the name.
fn without_name(text: &str) -> &str {
    match text.split_once('=') {
        Some((name, url)) if !name.contains([':', '/']) => url,
        _ => text,
    }
}

fn read_uv<'a>(tables: &Tables<'a>, table: &DeTable<'a>, indexes: &mut Indexes) {
    if let Some(setting) = tables.setting(table, "index-url") {
        indexes.main = Some(setting);
    }
    indexes
        .more
        .extend(tables.settings(table, "extra-index-url"));
    indexes.links.extend(tables.settings(table, "find-links"));
    let listed = table
        .get("index")
        .and_then(|list| list.get_ref().as_array());
    for entry in listed.into_iter().flatten() {
        let Some(entry) = entry.get_ref().as_table() else {
            continue;
        };
        let Some(url) = tables.setting(entry, "url") else {
            continue;
        };
        let is_default = entry
            .get("default")
            .is_some_and(|value| value.get_ref().as_bool() == Some(true));
        if is_default {
            indexes.main = Some(url);
        } else {
            indexes.more.push(url);
        }
    }
}

/// pip's help says which index it asks.
fn ask_pip(surroundings: &Surroundings) -> Result<Option<Setting>, PresetError> {
    for (name, arguments) in [
        ("pip", &["install", "--help"][..]),
        ("pip3", &["install", "--help"]),
        ("python3", &["-I", "-m", "pip", "install", "--help"]),
    ] {
        let Some(program) = surroundings.program(name) else {
            continue;
        };
        let question = Question {
            program: &program,
            arguments,
            own: &["PIP_"],
            // The help is cut into lines of this width.
            set: &[("COLUMNS", "4000")],
            hear: Hear::Output,
        };
        let answer = question.ask(surroundings)?;
        if let Some(setting) = default_in(&answer, "--index-url", "(default ", &question) {
            return Ok(Some(setting));
        }
        // A `pip` that is only a stub of a version manager has no help; the next may.
    }
    Ok(None)
}

fn ask_uv(surroundings: &Surroundings) -> Result<Option<Setting>, PresetError> {
    let Some(program) = surroundings.program("uv") else {
        return Ok(None);
    };
    let question = Question {
        program: &program,
        arguments: &["pip", "install", "--help"],
        own: &["UV_"],
        set: &[],
        hear: Hear::Output,
    };
    let answer = question.ask(surroundings)?;
    Ok(default_in(
        &answer,
        "--default-index",
        "(by default: <",
        &question,
    ))
}

/// The address that a client's help names as the default of an option.
fn default_in(help: &str, option: &str, mark: &str, question: &Question<'_>) -> Option<Setting> {
    let after = &help[help.find(option)?..];
    // Lines may have been cut anywhere between words.
    let words: Vec<&str> = after.split_whitespace().take(100).collect();
    let text = words.join(" ");
    let value = &text[text.find(mark)? + mark.len()..];
    let end = value.find([')', '>', ' '])?;
    Some(Setting {
        value: value[..end].trim_end_matches('.').to_owned(),
        from: Origin {
            file: format!("`{}`", question.words()),
            line: 0,
        },
        told: Told::ByDefault,
    })
}
