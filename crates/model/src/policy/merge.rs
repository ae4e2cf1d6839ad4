//! From files to a policy: one file over another, and names to what they stand for.
//!
//! Where two files speak of the same thing:
//!
//! | | |
//! | --- | --- |
//! | `hide`, `read_only`, `deny`, `checks`, `protected` and `network` of `review` | all of them |
//! | `max_patch_…`, `auto_approve` of `review` | the later one, where it says something |
//! | `write`, `export`, `cache` | the later one, where it says something |
//! | `allow`, `pass` | all of them; an empty list leaves nothing of what was before |
//! | `environment` | the later one, key by key, where it says something; rules of its network are added |
//! | `images`, `repositories` | all of them |
//! | mounts, doubles, secrets, `set`, limits | all; of those with one name the later one |

use super::document::{Document, Grant};
use super::network::{NetworkRule, Rules};
use super::preset::Preset;
use super::{Effective, Files, Line, Network, SecretRule, Variable, Variables};

impl Document {
    /// This file over another one. What both stand on is not looked at.
    pub fn over(self, base: Self) -> Self {
        let mut out = base;
        out.extends = Vec::new();
        add_lines(&mut out.hide, self.hide);
        add_lines(&mut out.read_only, self.read_only);
        out.write = self.write.or(out.write);
        out.export = self.export.or(out.export);
        out.cache = self.cache.or(out.cache);
        out.mounts
            .retain(|old| !self.mounts.iter().any(|own| own.inside == old.inside));
        out.mounts.extend(self.mounts);
        out.allow = added(out.allow, self.allow);
        out.pass = added(out.pass, self.pass);
        for rule in self.deny {
            if !out.deny.contains(&rule) {
                out.deny.push(rule);
            }
        }
        out.mocks
            .retain(|(old, _)| !self.mocks.iter().any(|(own, _)| own.host == old.host));
        out.mocks.extend(self.mocks);
        // One name, one meaning: whether a secret or a variable, the later file says.
        let taken = |name: &String| self.secrets.iter().any(|own| own.name == *name);
        out.set.retain(|name, _| !taken(name));
        if let Some(pass) = &mut out.pass {
            pass.retain(|line| !taken(&line.text));
        }
        out.secrets
            .retain(|old| !taken(&old.name) && !self.set.contains_key(&old.name));
        out.secrets.extend(self.secrets);
        out.set.extend(self.set);
        out.limits.extend(self.limits);
        out.holding = self.holding.over(out.holding);
        add_lines(&mut out.review.checks, self.review.checks);
        add_lines(&mut out.review.protected, self.review.protected);
        for rule in self.review.network.0 {
            add(&mut out.review.network.0, rule);
        }
        add_lines(&mut out.sources.registries, self.sources.registries);
        add_lines(&mut out.sources.repositories, self.sources.repositories);
        out.environment = self.environment.over(out.environment);
        out
    }

    /// The policy that this file is, when nothing is below it. `presets` says what a preset is here.
    pub fn resolve<E>(
        self,
        presets: &mut dyn FnMut(&Line) -> Result<Preset, E>,
    ) -> Result<Effective, E> {
        let mut network = Network {
            cache: self.cache.is_some_and(|(cache, _)| cache),
            ..Network::default()
        };
        let mut secrets = self.secrets;
        let mut set = self.set;
        let pass = self.pass.unwrap_or_default();
        let environment = self.environment.resolve(network.cache, &set, presets)?;
        let mut rules = Vec::new();
        for grant in self.allow.into_iter().flatten() {
            let line = match grant {
                Grant::Rule(rule) => {
                    add(&mut rules, rule);
                    continue;
                }
                Grant::Preset(line) => line,
            };
            let preset = presets(&line)?;
            for rule in preset.rules {
                add(&mut rules, rule);
            }
            for index in preset.indexes {
                add(&mut network.indexes, index);
            }
            for (name, value) in preset.env {
                // What the file says of a name counts more than what a preset needs.
                let told = secrets.iter().any(|secret| secret.name == name)
                    || pass.iter().any(|line| line.text == name);
                if !told {
                    let from = line.from.clone();
                    let value = Some(value);
                    set.entry(name).or_insert(Variable { value, from });
                }
            }
            for secret in preset.secrets {
                let told = |own: &SecretRule| own.name == secret.name;
                if !secrets.iter().any(told) && !set.contains_key(&secret.name) {
                    secrets.push(secret);
                }
            }
        }
        // A double answers for its host also where no rule speaks of it. The rule is made here, so that
        // it is narrowed, shown and taken away like any other.
        for (mock, from) in self.mocks {
            if !rules
                .iter()
                .any(|rule: &NetworkRule| rule.host.matches(&mock.host))
            {
                rules.push(NetworkRule::any_request(&mock.host, from));
            }
            network.mocks.push(mock);
        }
        rules.extend(self.deny);
        network.rules = Rules(rules);
        Ok(Effective {
            files: Files {
                hide: self.hide,
                write: self.write,
                read_only: self.read_only,
                export: self.export,
                mounts: self.mounts,
            },
            network,
            secrets,
            env: Variables { pass, set },
            limits: self.limits,
            environment,
            review: self.review,
            holding: self.holding.resolve(),
            sources: self.sources,
        })
    }
}

pub(super) fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn add_lines(list: &mut Vec<Line>, more: Vec<Line>) {
    for line in more {
        if !list.iter().any(|own| own.text == line.text) {
            list.push(line);
        }
    }
}

pub(super) fn added<T: PartialEq>(base: Option<Vec<T>>, own: Option<Vec<T>>) -> Option<Vec<T>> {
    match (base, own) {
        (base, None) => base,
        (_, Some(own)) if own.is_empty() => Some(own),
        (base, Some(own)) => {
            let mut list = base.unwrap_or_default();
            for item in own {
                add(&mut list, item);
            }
            Some(list)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::document::Source;

    fn read(file: &str, text: &str) -> Document {
        Document::parse(text.as_bytes(), Source { file, home: None }).expect(text)
    }

    fn rules(document: Document) -> Vec<String> {
        let effective = document.resolve::<()>(&mut |_| Err(())).expect("no preset");
        let rules = effective.network.rules.0.iter();
        rules.map(|rule| format!("{rule} {}", rule.from)).collect()
    }

    #[test]
    fn the_later_file_adds_or_decides() {
        let base = read(
            "base",
            "[files]\nhide = ['a', 'b']\nwrite = ['src/**']\n\
             [network]\nallow = ['a.example']\ndeny = ['d.example']\ncache = true\n\
             [env]\npass = ['LANG']\nset = { A = '1', B = '2' }\n[limits]\nmemory = '1G'\ntime = '1h'",
        );
        let own = read(
            "own",
            "[files]\nhide = ['b', 'c']\nwrite = []\n[network]\nallow = ['b.example']\n\
             [env]\npass = ['TERM']\nset = { B = '3' }\n[limits]\ntime = 'none'",
        );
        let both = own.over(base);
        let texts = |lines: &[Line]| {
            lines
                .iter()
                .map(|line| line.text.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(&both.hide), ["a", "b", "c"]);
        assert_eq!(both.hide[1].from.file, "base");
        assert_eq!(both.write, Some(Vec::new()));
        assert_eq!(texts(both.pass.as_deref().unwrap()), ["LANG", "TERM"]);
        assert_eq!(both.set["B"].value.as_deref(), Some("3"));
        assert_eq!(both.set["A"].value.as_deref(), Some("1"));
        assert_eq!(both.limits[&crate::limits::Limit::Time].most, None);
        assert_eq!(
            both.limits[&crate::limits::Limit::Memory].most,
            Some(1 << 30)
        );
        assert!(both.cache.clone().is_some_and(|(cache, _)| cache));
        assert_eq!(
            rules(both),
            ["a.example base:5", "b.example own:5", "d.example base:6"]
        );
    }

    #[test]
    fn an_empty_list_is_nothing() {
        let base = read("base", "[network]\nallow = ['*']\n[env]\npass = ['LANG']");
        let own = read("own", "[network]\nallow = []\n[env]\npass = []");
        let both = own.over(base);
        assert_eq!(both.pass, Some(Vec::new()));
        assert!(rules(both).is_empty());
    }

    #[test]
    fn a_name_is_a_secret_or_a_variable() {
        let secret = "[secrets.T]\nfrom = 'env:T'\nhosts = ['a.example']";
        let variable = "[env]\nset = { T = '1' }";
        let later_secret = read("b", secret).over(read("a", variable));
        assert!(later_secret.set.is_empty() && later_secret.secrets.len() == 1);
        let later_variable = read("b", variable).over(read("a", secret));
        assert!(later_variable.secrets.is_empty() && later_variable.set.len() == 1);
    }

    #[test]
    fn a_preset_brings_what_the_file_does_not_say() {
        let document = read(
            "own",
            "[network]\nallow = ['preset:x', 'a.example']\n[env]\nset = { A = 'own' }",
        );
        let effective = document
            .resolve::<()>(&mut |line| {
                assert_eq!((line.text.as_str(), line.from.line), ("x", 2));
                let mut preset = Preset::default();
                preset.env.insert("A".to_owned(), "preset".to_owned());
                preset.env.insert("B".to_owned(), "preset".to_owned());
                Ok(preset)
            })
            .expect("a preset");
        let value = |name: &str| effective.env.set[name].value.clone();
        assert_eq!(value("A").as_deref(), Some("own"));
        assert_eq!(value("B").as_deref(), Some("preset"));
        assert_eq!(effective.network.rules.0.len(), 1);
    }
}
