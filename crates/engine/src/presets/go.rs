//! `go`: the proxies of modules, and the database of their sums.

use std::collections::BTreeMap;

use ringfence_model::gate::IndexKind;
use ringfence_model::policy::network::Origin;

use super::PresetError;
use super::address::Address;
use super::client::{Hear, Question};
use super::draft::Draft;
use super::surroundings::{Setting, Surroundings, Told};

/// What is asked and passed on.
const NAMES: [&str; 5] = ["GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB"];

pub(super) fn fill(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let settings = settings(surroundings, draft)?;
    let Some(proxies) = settings.get("GOPROXY") else {
        return Err(PresetError::NoClient {
            preset: draft.preset,
            client: "`go`",
        });
    };
    let mut shown = String::new();
    let mut rest = proxies.value.as_str();
    while !rest.is_empty() {
        let end = rest.find([',', '|']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let word = word.trim();
        if matches!(word, "direct" | "off") {
            shown.push_str(word);
        } else {
            let setting = Setting {
                value: word.to_owned(),
                ..proxies.clone()
            };
            if let Some(address) = draft.address(&setting) {
                draft.index(IndexKind::Go, &address, &setting);
                shown.push_str(&address.url());
            } else {
                // A proxy that is left out must not become another one.
                shown.push_str("off");
            }
        }
        if word == "direct" {
            draft.note(
                "`direct` in GOPROXY: what no proxy has comes from where its name says; \
                 `preset:git-https` or rules of your own allow that",
            );
        }
        shown.extend(after.chars().next());
        rest = after.get(1..).unwrap_or_default();
    }
    draft.set("GOPROXY", shown);
    if let Some(sums) = settings.get("GOSUMDB") {
        sum_database(draft, sums);
    }
    for name in &NAMES[2..] {
        if let Some(setting) = settings.get(*name).filter(|s| !s.value.is_empty()) {
            draft.set(name, setting.value.clone());
        }
    }
    Ok(())
}

/// `name[+key] [URL]`: the name is the host where no address is given.
fn sum_database(draft: &mut Draft, setting: &Setting) {
    let mut words = setting.value.split_whitespace();
    let (Some(name), url) = (words.next(), words.next()) else {
        return;
    };
    if name == "off" {
        draft.set("GOSUMDB", "off");
        return;
    }
    let plain = name.split('+').next().unwrap_or(name);
    let address = Setting {
        value: url.map_or_else(|| format!("https://{plain}/"), str::to_owned),
        ..setting.clone()
    };
    if let Some(place) = draft.address(&address) {
        draft.read_only(&place, &address);
        let shown = url.map_or_else(String::new, |_| format!(" {}", Address::url(&place)));
        draft.set("GOSUMDB", format!("{name}{shown}"));
    }
}

/// go knows all of it; where there is no go, variables and its file do.
fn settings(
    surroundings: &Surroundings,
    draft: &Draft,
) -> Result<BTreeMap<String, Setting>, PresetError> {
    let mut settings = BTreeMap::new();
    if let Some(program) = surroundings.program("go") {
        let arguments: Vec<&str> = ["env", "-json"].into_iter().chain(NAMES).collect();
        let question = Question {
            program: &program,
            arguments: &arguments,
            own: &["GO"],
            // What another version would be fetched for says nothing of hosts.
            set: &[("GOTOOLCHAIN", "local")],
            hear: Hear::Output,
        };
        let answer = question.ask(surroundings)?;
        let odd = |_| PresetError::OddAnswer {
            preset: draft.preset,
            command: question.words(),
        };
        let said: BTreeMap<String, String> = serde_json::from_str(&answer).map_err(odd)?;
        settings.extend(said.into_iter().map(|(name, value)| {
            let setting = Setting {
                value,
                from: Origin {
                    file: format!("`go env {name}`"),
                    line: 0,
                },
                told: Told::ByDefault,
            };
            (name, setting)
        }));
    }
    let file = surroundings
        .directory("GOENV")
        .or_else(|| surroundings.config("go/env"))
        .filter(|_| surroundings.variable("GOENV") != Some("off"));
    if let Some(text) = file
        .map(|path| surroundings.read(&path))
        .transpose()?
        .flatten()
    {
        for (number, line) in (1..).zip(text.content.lines()) {
            if let Some((name, value)) = line.split_once('=')
                && NAMES.contains(&name)
            {
                settings.insert(name.to_owned(), text.setting(value, number));
            }
        }
    }
    for name in NAMES {
        if let Some(setting) = surroundings.setting(name) {
            settings.insert(name.to_owned(), setting);
        }
    }
    Ok(settings)
}
