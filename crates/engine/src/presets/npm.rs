//! `npm`: the registries of npm, which yarn and pnpm are sent to as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_model::gate::IndexKind;
use ringfence_model::host::Host;
use ringfence_model::policy::network::Origin;

use super::PresetError;
use super::address::Address;
use super::client::{Hear, Question};
use super::draft::Draft;
use super::ini::{Continued, entries};
use super::surroundings::{Setting, Surroundings, Told};

/// What begins the names of npm's variables, in any case.
const PREFIX: &str = "npm_config_";
/// Ends of keys that hold credentials: `//host/path/:_authToken`.
const CREDENTIALS: &[&str] = &[
    ":_authToken",
    ":_auth",
    ":_password",
    ":username",
    ":certfile",
];

/// What is configured.
#[derive(Debug, Default)]
struct Registries {
    main: Option<Setting>,
    /// By scope: `@company`.
    scoped: BTreeMap<String, Setting>,
    /// Hosts with credentials, and where those stand.
    credentials: Vec<(Host, Origin)>,
}

pub(super) fn fill(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let mut registries = Registries::default();
    let mut said = None;
    let global = match named(surroundings, "globalconfig") {
        Some(path) => Some(path),
        // It depends on where npm itself lies.
        None => {
            said = ask(surroundings)?;
            said.as_ref().map(|said| said.global.clone())
        }
    };
    let user = named(surroundings, "userconfig").or_else(|| surroundings.home(".npmrc"));
    // The weakest first.
    for path in global.iter().chain(&user) {
        read(surroundings, path, &mut registries)?;
    }
    variables(surroundings, &mut registries);
    if registries.main.is_none() {
        if said.is_none() {
            said = ask(surroundings)?;
        }
        registries.main = said.and_then(|said| said.registry);
    }
    let Some(main) = registries.main else {
        return Err(PresetError::NoClient {
            preset: draft.preset,
            client: "`npm`",
        });
    };
    let Some(address) = draft.address(&main) else {
        return match main.told {
            Told::Configured => Ok(()),
            Told::ByDefault => Err(PresetError::OddAnswer {
                preset: draft.preset,
                command: "npm config get registry".to_owned(),
            }),
        };
    };
    draft.index(IndexKind::Npm, &address, &main);
    for name in [
        "NPM_CONFIG_REGISTRY",
        // Yarn, before and since version 2.
        "YARN_REGISTRY",
        "YARN_NPM_REGISTRY_SERVER",
    ] {
        draft.set(name, address.url());
    }
    for (scope, setting) in &registries.scoped {
        if let Some(address) = draft.address(setting) {
            draft.index(IndexKind::Npm, &address, setting);
            draft.set(&format!("{PREFIX}{scope}:registry"), address.url());
        }
    }
    for (host, from) in &registries.credentials {
        draft.not_public(host);
        draft.credentials_left_out(host, from);
    }
    // What these ask for is no package.
    for name in ["AUDIT", "FUND", "UPDATE_NOTIFIER"] {
        draft.set(&format!("NPM_CONFIG_{name}"), "false");
    }
    Ok(())
}

/// A file that a variable names.
fn named(surroundings: &Surroundings, key: &str) -> Option<PathBuf> {
    let (_, value) = surroundings
        .variables(|name| key_of(name).is_some_and(|own| own.eq_ignore_ascii_case(key)))
        .next()?;
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

fn key_of(variable: &str) -> Option<&str> {
    let begins = variable.get(..PREFIX.len())?;
    begins
        .eq_ignore_ascii_case(PREFIX)
        .then(|| &variable[PREFIX.len()..])
}

fn read(
    surroundings: &Surroundings,
    path: &Path,
    registries: &mut Registries,
) -> Result<(), PresetError> {
    let Some(text) = surroundings.read(path)? else {
        return Ok(());
    };
    for entry in entries(&text.content, Continued::Never) {
        let value = expand(surroundings, &entry.value);
        take(registries, &entry.key, text.setting(&value, entry.line));
    }
    Ok(())
}

fn variables(surroundings: &Surroundings, registries: &mut Registries) {
    for (name, value) in surroundings.variables(|name| key_of(name).is_some()) {
        let (Some(key), false) = (key_of(name), value.trim().is_empty()) else {
            continue;
        };
        let setting = Setting {
            value: value.trim().to_owned(),
            from: Origin {
                file: format!("${name}"),
                line: 0,
            },
            told: Told::Configured,
        };
        let key = if key.starts_with("//") {
            key.to_owned()
        } else {
            key.to_ascii_lowercase()
        };
        take(registries, &key, setting);
    }
}

fn take(registries: &mut Registries, key: &str, setting: Setting) {
    if key == "registry" {
        registries.main = Some(setting);
    } else if let Some(scope) = key.strip_suffix(":registry").filter(|s| s.starts_with('@')) {
        registries.scoped.insert(scope.to_owned(), setting);
    } else if key.starts_with("//") && CREDENTIALS.iter().any(|end| key.ends_with(end)) {
        // The value of such a key is not looked at.
        let place = key.rsplit_once(':').map_or(key, |(place, _)| place);
        if let Ok(address) = Address::parse(&format!("https:{place}")) {
            registries.credentials.push((address.host, setting.from));
        }
    }
}

/// npm puts variables where `${NAME}` stands, and leaves what is not set.
fn expand(surroundings: &Surroundings, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let Some(end) = rest[at..].find('}') else {
            break;
        };
        out.push_str(&rest[..at]);
        let whole = &rest[at..=at + end];
        let name = whole[2..whole.len() - 1].trim_end_matches('?');
        out.push_str(surroundings.variable(name).unwrap_or(whole));
        rest = &rest[at + end + 1..];
    }
    out.push_str(rest);
    out
}

/// What npm says of itself.
#[derive(Debug)]
struct Said {
    global: PathBuf,
    registry: Option<Setting>,
}

/// Asks npm where its settings are, and which registry it asks.
fn ask(surroundings: &Surroundings) -> Result<Option<Said>, PresetError> {
    let Some(program) = surroundings.program("npm") else {
        return Ok(None);
    };
    // It does not tell a registry with a password, and then tells nothing.
    for keys in [&["registry", "globalconfig"][..], &["globalconfig"]] {
        let arguments: Vec<&str> = ["config", "get"].iter().chain(keys).copied().collect();
        let question = Question {
            program: &program,
            arguments: &arguments,
            own: &[PREFIX],
            set: &[("npm_config_logs_max", "0")],
            hear: Hear::Output,
        };
        let answer = question.ask(surroundings)?;
        let value = |key: &str| {
            let value = |line: &str| {
                Some(
                    line.trim()
                        .strip_prefix(key)?
                        .strip_prefix('=')?
                        .trim()
                        .to_owned(),
                )
            };
            answer.lines().find_map(value)
        };
        // Of one key, the value is all that is said.
        let global = match keys.len() {
            1 => Some(answer.trim().to_owned()),
            _ => value("globalconfig"),
        };
        let Some(global) = global.map(PathBuf::from).filter(|path| path.is_absolute()) else {
            continue;
        };
        let registry = value("registry").map(|value| Setting {
            value,
            from: Origin {
                file: "`npm config get registry`".to_owned(),
                line: 0,
            },
            told: Told::ByDefault,
        });
        return Ok(Some(Said { global, registry }));
    }
    Err(PresetError::OddAnswer {
        preset: "npm",
        command: "npm config get registry globalconfig".to_owned(),
    })
}
