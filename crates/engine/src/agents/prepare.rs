//! From a preset and a prompt to what a run is asked.

use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::agent::{BASE_URL, BRIEF, BRIEF_FILE, FEEDBACK, Preset, WORKSPACE};
use ringfence_model::host::HostPattern;
use ringfence_model::policy::network::{Effect, Origin, Reason, Verdict};
use ringfence_model::policy::{Effective, Mount, SecretSource, Variable};

use super::installed::{self, Installed, NotInstalled};
use super::known::load;
use super::stage::{HOME, HomeFile};
use super::{AgentError, Inside};
use crate::home::Home;
use crate::keeper::INSIDE;
use crate::presets::{self, Surroundings};
use crate::run::RunRequest;

/// BOUND: bytes of one word of a command line; the kernel takes 128 KiB.
const MAX_WORD: usize = 100 << 10;
/// Where the prompt is, below the home, for agents that read a file.
const PROMPT_FILE: &str = ".ringfence/brief.md";

/// An agent that can be started here.
#[derive(Debug)]
pub struct Prepared {
    preset: Preset,
    installed: Installed,
    grants: Effective,
    passed: Vec<(String, String)>,
    prompt: String,
    /// Words that were typed, after those of the preset.
    more: Vec<ByteText>,
}

/// Finds all that the agent of this name needs. `folder` is what it will work on: nothing is taken from
/// there.
pub fn prepare(
    home: &Home,
    name: &str,
    prompt: &str,
    more: &[ByteText],
    folder: &Path,
) -> Result<Prepared, AgentError> {
    let preset = load(home, name)?.preset;
    let around = Surroundings::of_process(Some(folder));
    let installed = find(&around, &preset).map_err(|why| not_installed(&preset, why))?;
    let grants = grants(home, &preset, Some(folder))?;
    let passed = grants.env.pass.iter();
    let passed = passed.filter_map(|line| {
        let value = around.variable(&line.text)?;
        Some((line.text.clone(), value.to_owned()))
    });
    Ok(Prepared {
        passed: passed.collect(),
        preset,
        installed,
        grants,
        prompt: prompt.to_owned(),
        more: more.to_vec(),
    })
}

/// The agent's program, and all others that it needs.
pub(super) fn find(around: &Surroundings, preset: &Preset) -> Result<Installed, NotInstalled> {
    let mut found = installed::find(around, &preset.command[0])?;
    for program in &preset.needs {
        installed::with(around, &mut found, program)?;
    }
    Ok(found)
}

fn not_installed(preset: &Preset, why: NotInstalled) -> AgentError {
    let agent = preset.name.clone();
    let install = preset.install.clone();
    match why {
        NotInstalled::Nowhere => AgentError::NoProgram {
            agent,
            program: preset.command[0].clone(),
            install,
        },
        NotInstalled::Needs(program) => AgentError::NoneInside { agent, program },
        NotInstalled::CannotShow { path, why } => AgentError::CannotShow {
            agent,
            path,
            why,
            install,
        },
    }
}

/// What the preset asks of the network, with its presets resolved on this host.
pub(super) fn grants(
    home: &Home,
    preset: &Preset,
    folder: Option<&Path>,
) -> Result<Effective, AgentError> {
    let resolve =
        &mut |line: &ringfence_model::policy::Line| presets::resolve(home, &line.text, folder);
    let grants = preset.grants.clone().resolve(resolve);
    grants.map_err(|source| AgentError::Network {
        agent: preset.name.clone(),
        source,
    })
}

/// Whether the value of a secret is at hand. A command is not run for that.
pub(super) fn is_there(source: &SecretSource) -> bool {
    match source {
        SecretSource::Env(name) => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
        SecretSource::File(path) => path.is_file(),
        SecretSource::Command(_) => true,
    }
}

impl Prepared {
    /// Puts all of it into a request whose policy is settled, and says what the agent reads from standard
    /// input. What the user's own policy says counts more, and what it denies stays denied.
    pub fn join(mut self, request: &mut RunRequest) -> Result<Option<String>, AgentError> {
        self.let_out(request)?;
        self.bind(request)?;
        let fill = self.fill(request);
        self.set(request, &fill);
        let preset = &self.preset;
        let program =
            if request.policy.environment.image.is_some() && self.installed.shown.is_empty() {
                // The system inside is the image's.
                ByteText::from(preset.command[0].as_str())
            } else {
                ByteText::from(&*self.installed.inside.to_string_lossy())
            };
        let words = |command: &[String], told: &str| {
            let rest = command[1..].iter();
            let rest = rest.map(|word| ByteText::from(&*fill.word(word).replace(BRIEF, told)));
            let words = std::iter::once(program.clone()).chain(rest);
            words.chain(self.more.iter().cloned()).collect::<Vec<_>>()
        };
        // HOSTILE: names of files may be in it; nothing of it is a place for what checks say later.
        let harmless = self.prompt.replace(FEEDBACK, "{ feedback }");
        request.argv = words(&preset.command, &harmless);
        if request
            .argv
            .iter()
            .any(|word| word.as_bytes().len() > MAX_WORD)
        {
            return Err(AgentError::WordsTooLong);
        }
        let again = preset.again.as_ref();
        let again = again.map(|command| words(command, FEEDBACK));
        let uses = |what: &str| preset.command.iter().any(|word| word.contains(what));
        let mut home: Vec<HomeFile> = preset
            .home
            .iter()
            .map(|file| HomeFile {
                path: file.path.clone(),
                content: fill.word(&file.text).into_bytes(),
            })
            .collect();
        if uses(BRIEF_FILE) {
            home.push(HomeFile {
                path: PathBuf::from(PROMPT_FILE),
                content: self.prompt.clone().into_bytes(),
            });
        }
        request.notes.push(self.told());
        request.agent = Some(Inside {
            name: preset.name.clone(),
            home,
            mounts: self.mounts(),
            path: self.installed.path.clone(),
            again,
            report: preset.report.clone(),
        });
        let told = uses(BRIEF) || uses(BRIEF_FILE);
        Ok((!told).then_some(self.prompt))
    }

    /// Adds rules. Where the user's policy denies the place of a key, the agent could not work.
    fn let_out(&self, request: &mut RunRequest) -> Result<(), AgentError> {
        let network = &mut request.policy.network;
        for rule in &self.grants.network.rules.0 {
            if !network.rules.0.contains(rule) {
                network.rules.0.push(rule.clone());
            }
        }
        for mock in &self.grants.network.mocks {
            if !network.mocks.iter().any(|own| own.host == mock.host) {
                network.mocks.push(mock.clone());
            }
        }
        network.cache |= self.grants.network.cache;
        let allowed = &self.grants.network.rules.0;
        for rule in allowed.iter().filter(|rule| rule.effect == Effect::Allow) {
            let HostPattern::Exact(host) = &rule.host else {
                continue;
            };
            let denied =
                rule.ports
                    .iter()
                    .find_map(|port| match network.rules.connection(host, *port) {
                        Verdict::Deny {
                            reason: Reason::Rule,
                            rule: Some(denies),
                        } => Some(format!("{denies} ({})", denies.from)),
                        _ => None,
                    });
            let Some(denied) = denied else { continue };
            let secrets = &self.grants.secrets;
            let has_key = |pattern: &HostPattern| pattern.matches(host);
            if secrets
                .iter()
                .any(|secret| secret.hosts.iter().any(has_key))
            {
                return Err(AgentError::Denied {
                    agent: self.preset.name.clone(),
                    host: host.to_string(),
                    rule: denied,
                });
            }
            request.notes.push(format!(
                "the agent `{}` also asks `{host}`, which a rule denies: {denied}",
                self.preset.name
            ));
        }
        Ok(())
    }

    /// Adds secrets, and refuses to go on without a key.
    fn bind(&self, request: &mut RunRequest) -> Result<(), AgentError> {
        let policy = &mut request.policy;
        let has = |env: &[(ByteText, ByteText)], name: &str| {
            env.iter().any(|(own, _)| own.as_bytes() == name.as_bytes())
        };
        for secret in &self.grants.secrets {
            let told = policy.secrets.iter().any(|own| own.name == secret.name);
            if !told && !has(&request.env, &secret.name) && is_there(&secret.source) {
                policy.secrets.push(secret.clone());
            }
        }
        let keys = &self.preset.keys;
        let there = |key: &String| {
            policy.secrets.iter().any(|own| own.name == *key) || has(&request.env, key)
        };
        if keys.is_empty() || keys.iter().any(there) {
            Ok(())
        } else {
            Err(AgentError::NoKey {
                agent: self.preset.name.clone(),
                keys: keys.clone(),
            })
        }
    }

    /// Adds variables of which nobody else has spoken.
    fn set(&mut self, request: &mut RunRequest, fill: &Fill) {
        let set = std::mem::take(&mut self.grants.env.set);
        let set = set.into_iter().filter_map(|(name, variable)| {
            let value = fill.word(variable.value.as_deref()?);
            Some((name, value, variable.from))
        });
        let from = Origin {
            file: format!("agent:{}", self.preset.name),
            line: 0,
        };
        let own = self.installed.set.iter().chain(&self.passed);
        let own = own.map(|(name, value)| (name.clone(), value.clone(), from.clone()));
        for (name, value, from) in set.chain(own).collect::<Vec<_>>() {
            let named = ByteText::from(name.as_str());
            let told = request.env.iter().any(|(own, _)| *own == named)
                || request.policy.secrets.iter().any(|own| own.name == name);
            if told {
                continue;
            }
            request.env.push((named, value.as_str().into()));
            let variable = Variable {
                value: Some(value),
                from,
            };
            request.policy.env.set.insert(name, variable);
        }
    }

    /// What stands for what.
    fn fill(&self, request: &RunRequest) -> Fill {
        let base = self.preset.base_url.as_ref();
        let base = base.map(|base| {
            // The user's own policy may set it as well.
            let named = ByteText::from(base.variable.as_str());
            let own = request.env.iter().find(|(name, _)| *name == named);
            let own = own.map(|(_, value)| value.to_text());
            let resolved = self.grants.env.set.get(&base.variable);
            let resolved = resolved.and_then(|variable| variable.value.clone());
            let url = own.or(resolved).unwrap_or_else(|| base.usual.clone());
            url.trim_end_matches('/').to_owned()
        });
        let inside = request.view.inside.as_deref();
        Fill {
            base_url: base.unwrap_or_default(),
            workspace: inside
                .unwrap_or(Path::new(INSIDE))
                .to_string_lossy()
                .into_owned(),
        }
    }

    fn mounts(&self) -> Vec<Mount> {
        let from = Origin {
            file: format!("agent:{}", self.preset.name),
            line: 0,
        };
        let mount = |shown: &crate::toolchains::Shown| Mount {
            host: shown.host.clone(),
            inside: shown.inside.clone(),
            writable: false,
            from: from.clone(),
        };
        self.installed.shown.iter().map(mount).collect()
    }

    /// For a person: which program it is.
    fn told(&self) -> String {
        let version = self.installed.version.as_deref();
        let version = version.map_or(String::new(), |version| format!(" {version}"));
        let host = self.installed.host.display();
        match self.installed.shown.len() {
            0 => format!("agent `{}`{version}: {host}", self.preset.name),
            count => format!(
                "agent `{}`{version}: {host}, of which {count} paths can be read inside",
                self.preset.name
            ),
        }
    }
}

/// What stands for the names in braces.
struct Fill {
    base_url: String,
    workspace: String,
}

impl Fill {
    fn word(&self, word: &str) -> String {
        word.replace(BASE_URL, &self.base_url)
            .replace(WORKSPACE, &self.workspace)
            .replace(BRIEF_FILE, &format!("{HOME}/{PROMPT_FILE}"))
    }
}
