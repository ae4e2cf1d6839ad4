//! `cargo`: the index of crates, what replaces it, and registries beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringfence_model::gate::IndexKind;
use ringfence_model::policy::network::Origin;
use toml::de::DeTable;

use super::PresetError;
use super::client::{Hear, Question};
use super::draft::Draft;
use super::surroundings::{Setting, Surroundings, Told};
use super::toml_lines::Tables;

/// What cargo calls the source that it has of itself.
const OWN: &str = "crates-io";
/// BOUND: sources that replace each other one after the other.
const MAX_CHAIN: usize = 16;

/// What is configured.
#[derive(Debug, Default)]
struct Sources {
    /// By name: which one stands for it.
    replaced: BTreeMap<String, Setting>,
    /// By name: where it is; nothing for one on the disk.
    registry: BTreeMap<String, Option<Setting>>,
    /// Registries beside.
    beside: BTreeMap<String, Setting>,
}

pub(super) fn fill(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let mut sources = Sources::default();
    for path in files(surroundings) {
        if let Some(text) = surroundings.read(&path)? {
            read(&Tables::read(&text)?, &mut sources);
            break;
        }
    }
    variables(surroundings, &mut sources);
    let main = match stands_for(&sources, OWN) {
        Place::Disk => None,
        Place::At(setting) => {
            // No variable says so to cargo.
            draft.note(format!(
                "{}: cargo takes no source replacement from variables; for the inside, \
                 put the same `[source]` lines into `.cargo/config.toml` of the folder",
                setting.from
            ));
            Some(setting)
        }
        Place::Unknown => Some(ask(surroundings, draft)?),
    };
    for setting in main.iter().chain(sources.beside.values()) {
        index(draft, setting);
    }
    for (name, setting) in &sources.beside {
        let name = name.to_ascii_uppercase().replace('-', "_");
        let web = setting.value.trim_start_matches("sparse+");
        let plain = Setting {
            value: web.to_owned(),
            ..setting.clone()
        };
        if let Some(address) = draft.address(&plain) {
            let sparse = if web == setting.value { "" } else { "sparse+" };
            let url = format!("{sparse}{}", address.url());
            draft.set(&format!("CARGO_REGISTRIES_{name}_INDEX"), url);
            let token = format!("CARGO_REGISTRIES_{name}_TOKEN");
            if let Some(token) = surroundings.setting(&token) {
                draft.not_public(&address.host);
                draft.credentials_left_out(&address.host, &token.from);
            }
        }
    }
    Ok(())
}

/// Rules for an index: files over the web, or a git repository.
fn index(draft: &mut Draft, setting: &Setting) {
    let web = setting.value.strip_prefix("sparse+");
    let plain = Setting {
        value: web.unwrap_or(&setting.value).to_owned(),
        ..setting.clone()
    };
    if let Some(address) = draft.address(&plain) {
        if web.is_none() {
            draft.git(&address, &plain);
        }
        draft.index(IndexKind::Cargo, &address, &plain);
    }
}

/// Cargo reads the older name where both are there.
fn files(surroundings: &Surroundings) -> Vec<PathBuf> {
    let home = surroundings
        .directory("CARGO_HOME")
        .or_else(|| surroundings.home(".cargo"));
    home.into_iter()
        .flat_map(|home| [home.join("config"), home.join("config.toml")])
        .collect()
}

fn read<'a>(tables: &Tables<'a>, sources: &mut Sources) {
    let each = |key: &str, take: &mut dyn FnMut(String, &DeTable<'a>)| {
        for (name, table) in Tables::table(tables.top(), key).into_iter().flatten() {
            if let Some(table) = table.get_ref().as_table() {
                take(name.get_ref().to_string(), table);
            }
        }
    };
    each("source", &mut |name, table| {
        if let Some(other) = tables.setting(table, "replace-with") {
            sources.replaced.insert(name.clone(), other);
        }
        let on_disk = ["local-registry", "directory"]
            .iter()
            .any(|key| table.contains_key(*key));
        match tables.setting(table, "registry") {
            Some(setting) => sources.registry.insert(name, Some(setting)),
            None if on_disk => sources.registry.insert(name, None),
            None => None,
        };
    });
    each("registries", &mut |name, table| {
        if let Some(index) = tables.setting(table, "index") {
            sources.beside.insert(name, index);
        }
    });
}

fn variables(surroundings: &Surroundings, sources: &mut Sources) {
    const BEGIN: &str = "CARGO_REGISTRIES_";
    const END: &str = "_INDEX";
    let of = |name: &str| {
        let name = name.strip_prefix(BEGIN)?.strip_suffix(END)?;
        Some(name.to_ascii_lowercase().replace('_', "-"))
    };
    for (name, _) in surroundings.variables(|name| of(name).is_some()) {
        if let (Some(registry), Some(setting)) = (of(name), surroundings.setting(name)) {
            sources.beside.insert(registry, setting);
        }
    }
}

/// What a source comes to.
enum Place {
    At(Setting),
    Disk,
    /// Nobody configured it.
    Unknown,
}

fn stands_for(sources: &Sources, name: &str) -> Place {
    let mut name = name.to_owned();
    for _ in 0..MAX_CHAIN {
        if let Some(other) = sources.replaced.get(&name) {
            name.clone_from(&other.value);
            continue;
        }
        return match sources.registry.get(&name) {
            Some(Some(setting)) => Place::At(setting.clone()),
            Some(None) => Place::Disk,
            None => match sources.beside.get(&name) {
                Some(setting) => Place::At(setting.clone()),
                None => Place::Unknown,
            },
        };
    }
    Place::Unknown
}

/// Asks cargo which index it has of itself: it is given a home of its own with nothing in it, and a
/// proxy that is not there, so that nothing leaves the host. It then says what it could not get.
fn ask(surroundings: &Surroundings, draft: &Draft) -> Result<Setting, PresetError> {
    let Some(program) = surroundings.program("cargo") else {
        return Err(PresetError::NoClient {
            preset: draft.preset,
            client: "`cargo`",
        });
    };
    let nothing = Nothing::make()?;
    let home = nothing.0.display().to_string();
    let question = Question {
        program: &program,
        arguments: &["search", "a"],
        own: &[],
        set: &[
            ("CARGO_HOME", &home),
            // Nothing listens at the port of `tcpmux`, and what did would get no name of a package.
            ("CARGO_HTTP_PROXY", "http://127.0.0.1:1"),
            ("CARGO_NET_RETRY", "0"),
            ("CARGO_TERM_COLOR", "never"),
        ],
        hear: Hear::Errors,
    };
    let answer = question.ask(surroundings)?;
    let odd = || PresetError::OddAnswer {
        preset: draft.preset,
        command: question.words(),
    };
    let at = answer.find("https://").ok_or_else(odd)?;
    let end = answer[at..]
        .find(['`', '\'', '"', ' ', '\n'])
        .ok_or_else(odd)?;
    let file = &answer[at..at + end];
    let index = file.strip_suffix("config.json").unwrap_or(file);
    Ok(Setting {
        value: format!("sparse+{index}"),
        from: Origin {
            file: format!("`{}`", question.words()),
            line: 0,
        },
        told: Told::ByDefault,
    })
}

/// A directory for one question.
struct Nothing(PathBuf);

impl Nothing {
    fn make() -> Result<Self, PresetError> {
        let mut name = [0; 16];
        let path = std::env::temp_dir();
        let read = |path: PathBuf| move |source| PresetError::Read { path, source };
        rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| read(path.clone())(errno.into()))?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = path.join(format!("ringfence-cargo-{name}"));
        std::fs::create_dir(&path).map_err(read(path.clone()))?;
        Ok(Self(path))
    }
}

impl Drop for Nothing {
    fn drop(&mut self) {
        // What stays is an empty index in the directory for what may go.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
