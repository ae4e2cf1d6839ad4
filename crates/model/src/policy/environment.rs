//! Environments of files put together: one over another, names to what they stand for, and what a
//! repository proposes below what the user says.

use std::collections::BTreeMap;

use super::document::{EnvironmentText, Grant};
use super::merge::{add, added};
use super::network::{NetworkRule, Origin, Rules};
use super::preset::Preset;
use super::{Line, Network, Variable};
use crate::environment::{Environment, NamedBy};

impl EnvironmentText {
    /// This file over another one, key by key.
    pub(super) fn over(self, base: Self) -> Self {
        let mut out = base;
        out.image = self.image.or(out.image);
        out.setup = self.setup.or(out.setup);
        out.key = self.key.or(out.key);
        out.root = self.root.or(out.root);
        out.network = added(out.network, self.network);
        out.env.extend(self.env);
        out.path = added(out.path, self.path);
        out.caches.extend(self.caches);
        out.tmpfs
            .retain(|old| !self.tmpfs.iter().any(|own| own.inside == old.inside));
        out.tmpfs.extend(self.tmpfs);
        out
    }

    /// The environment that this is, when nothing is below it. `set`: variables that the file gives
    /// to whatever runs, so that a setup has the toolchain that the agent has.
    pub(super) fn resolve<E>(
        self,
        keep_artefacts: bool,
        set: &BTreeMap<String, Variable>,
        presets: &mut dyn FnMut(&Line) -> Result<Preset, E>,
    ) -> Result<Environment, E> {
        let mut own = Environment {
            setup: self.setup,
            key: self.key.unwrap_or_default(),
            root: self.root.filter(|root| root.on).map(|root| root.from),
            env: self.env,
            path: self.path.unwrap_or_default(),
            caches: self.caches,
            tmpfs: self.tmpfs,
            setup_env: set.clone(),
            ..Environment::default()
        };
        if let Some(image) = self.image {
            own.set_image(image, NamedBy::User);
        }
        own.allow(self.network.unwrap_or_default(), presets)?;
        own.network.cache = keep_artefacts && !own.network.is_offline();
        Ok(own)
    }
}

impl Environment {
    /// Lets the setup reach more.
    pub fn allow<E>(
        &mut self,
        grants: Vec<Grant>,
        presets: &mut dyn FnMut(&Line) -> Result<Preset, E>,
    ) -> Result<(), E> {
        let Network {
            rules: Rules(rules),
            indexes,
            ..
        } = &mut self.network;
        for grant in grants {
            let line = match grant {
                Grant::Rule(rule) => {
                    add::<NetworkRule>(rules, rule);
                    continue;
                }
                Grant::Preset(line) => line,
            };
            let preset = presets(&line)?;
            for rule in preset.rules {
                add(rules, rule);
            }
            for index in preset.indexes {
                add(indexes, index);
            }
            for (name, value) in preset.env {
                let from = line.from.clone();
                let value = Some(value);
                let variable = Variable { value, from };
                self.setup_env.entry(name).or_insert(variable);
            }
            for secret in preset.secrets {
                if !self.secrets.iter().any(|own| own.name == secret.name) {
                    self.secrets.push(secret);
                }
            }
        }
        Ok(())
    }

    /// What a repository proposes, where the user says nothing. What it does not get is returned.
    pub(super) fn propose(&mut self, asked: EnvironmentText) -> Vec<(String, Origin)> {
        let mut refused = Vec::new();
        if let (None, Some(image)) = (&self.image, asked.image) {
            self.set_image(image, NamedBy::Others);
        }
        // INVARIANT: the files that decide go with the setup that they decide about.
        if self.setup.is_none() {
            self.setup = asked.setup;
            if self.key.is_empty() {
                self.key = asked.key.unwrap_or_default();
            }
        }
        for (name, variable) in asked.env {
            self.env.entry(name).or_insert(variable);
        }
        for directory in asked.path.into_iter().flatten() {
            if !self.path.iter().any(|own| own.text == directory.text) {
                self.path.push(directory);
            }
        }
        for (kind, switch) in asked.caches {
            self.caches.entry(kind).or_insert(switch);
        }
        for area in asked.tmpfs {
            if !self.tmpfs.iter().any(|own| own.inside == area.inside) {
                self.tmpfs.push(area);
            }
        }
        if let Some(root) = asked.root.filter(|root| root.on && self.root.is_none()) {
            refused.push(("environment.root".to_owned(), root.from));
        }
        for grant in asked.network.into_iter().flatten() {
            let (item, from) = match grant {
                Grant::Preset(line) => (format!("preset:{}", line.text), line.from),
                Grant::Rule(rule) => (rule.to_string(), rule.from),
            };
            refused.push((format!("environment.network {item}"), from));
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::CacheKind;
    use crate::policy::Effective;
    use crate::policy::document::{Document, Source};
    use crate::policy::narrow::{Proposal, narrow};

    fn read(file: &str, text: &str) -> Document {
        Document::parse(text.as_bytes(), Source { file, home: None }).expect(text)
    }

    fn preset(line: &Line) -> Result<Preset, ()> {
        let mut preset = Preset::default();
        let from = line.from.clone();
        let rule = NetworkRule::parse(crate::policy::network::Effect::Allow, "i.example", from);
        preset.rules.push(rule.expect("a rule"));
        preset.env.insert("INDEX".to_owned(), line.text.clone());
        Ok(preset)
    }

    fn narrowed(own: &str, asked: &str) -> (Effective, Vec<String>) {
        let mut policy = read("own", own).resolve(&mut preset).expect("a policy");
        let proposal = Proposal {
            allow: None,
            document: read("repo", asked),
        };
        let limits = crate::limits::Limits::for_host(8 << 30);
        let refused = narrow(&mut policy, proposal, &limits);
        let refused = refused.into_iter().map(|refused| refused.item).collect();
        (policy, refused)
    }

    #[test]
    fn the_later_file_counts_key_by_key() {
        let base = "[environment]\nimage = 'a'\nsetup = 'x'\nkey = ['l']\nnetwork = ['a.example']\n\
                    [environment.cache]\npip = true\n[mounts]\n'/s' = { tmpfs = '1M' }";
        let own = "[environment]\nimage = 'b'\nnetwork = ['preset:pip']\n\
                   [environment.cache]\npip = false\n[mounts]\n'/s' = { tmpfs = '2M' }\n\
                   [env.set]\nPATH = '/t/bin:/bin'";
        let both = read("own", own).over(read("base", base));
        let both = both.resolve(&mut preset).expect("a policy").environment;
        assert_eq!((both.image(), both.setup()), (Some("b"), Some("x")));
        assert_eq!(both.key_paths().collect::<Vec<_>>(), ["l"]);
        let rules = both.network.rules.0.iter().map(ToString::to_string);
        assert_eq!(rules.collect::<Vec<_>>(), ["a.example", "i.example"]);
        assert_eq!(both.setup_env["INDEX"].value.as_deref(), Some("pip"));
        assert_eq!(both.setup_env["PATH"].value.as_deref(), Some("/t/bin:/bin"));
        assert_eq!(both.caches().count(), 0);
        assert_eq!((both.tmpfs.len(), both.tmpfs[0].bytes), (1, 2 << 20));
    }

    #[test]
    fn a_repository_names_all_but_what_opens_something() {
        let asked = "[environment]\nimage = 'i'\nsetup = 'make'\nkey = ['Makefile']\nroot = true\n\
                     network = ['preset:pip', 'a.example']\nenv = { A = '1' }\n\
                     [environment.cache]\nnpm = true\n[mounts]\n'/s' = { tmpfs = '1M' }";
        let (policy, refused) = narrowed("", asked);
        let own = policy.environment;
        assert_eq!((own.image(), own.setup()), (Some("i"), Some("make")));
        assert_eq!(own.image_by, NamedBy::Others);
        assert_eq!(own.caches().collect::<Vec<_>>(), [CacheKind::Npm]);
        assert_eq!((own.key.len(), own.tmpfs.len(), own.env.len()), (1, 1, 1));
        assert!(own.network.is_offline() && own.root.is_none());
        assert_eq!(
            refused,
            [
                "environment.root",
                "environment.network preset:pip",
                "environment.network a.example"
            ]
        );
    }

    #[test]
    fn a_repository_names_no_registry() {
        let own = "[images]\nregistries = ['a.example']\n[environment]\nimage = 'a.example/x'";
        let asked = "[images]\nregistries = ['evil.example', 'A.example', 'a.example:1']\n\
                     [environment]\nimage = 'evil.example/x'";
        let (policy, refused) = narrowed(own, asked);
        let named = policy.sources.registries.iter();
        assert_eq!(
            named.map(|line| &line.text).collect::<Vec<_>>(),
            ["a.example"]
        );
        assert_eq!(policy.environment.image(), Some("a.example/x"));
        assert_eq!(policy.environment.image_by, NamedBy::User);
        assert_eq!(
            refused,
            [
                "images.registries evil.example",
                "images.registries a.example:1"
            ]
        );
    }

    #[test]
    fn an_image_that_is_read_back_is_not_the_users_word() {
        let (policy, _) = narrowed("[environment]\nimage = 'i'", "");
        assert_eq!(policy.environment.image_by, NamedBy::User);
        let kept = serde_json::to_string(&policy).expect("json");
        let read: Effective = serde_json::from_str(&kept).expect("json");
        assert_eq!(read.environment.image(), Some("i"));
        assert_eq!(read.environment.image_by, NamedBy::Others);
    }

    #[test]
    fn what_the_user_says_stays() {
        let own = "[environment]\nimage = 'host'\nsetup = ''\nkey = ['k']\nenv = { A = 'own' }\n\
                   path = ['/own', 'x']\n[environment.cache]\nnpm = false\n[mounts]\n'/s' = { tmpfs = '1M' }";
        let asked = "[environment]\nimage = 'i'\nsetup = 'make'\nkey = ['Makefile']\n\
                     env = { A = 'repo' }\npath = ['x', '~/y']\n[environment.cache]\nnpm = true\n\
                     [mounts]\n'/s' = { tmpfs = '8G' }";
        let (policy, refused) = narrowed(own, asked);
        let own = policy.environment;
        assert_eq!((own.image(), own.setup()), (None, None));
        assert_eq!(own.caches().count(), 0);
        assert_eq!(own.tmpfs[0].bytes, 1 << 20);
        assert_eq!(own.env["A"].value.as_deref(), Some("own"));
        let path: Vec<&str> = own.path.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(path, ["/own", "x", "~/y"]);
        assert!(refused.is_empty());
    }

    #[test]
    fn the_files_that_decide_go_with_their_setup() {
        let (policy, _) = narrowed("[environment]\nsetup = 'a'", "[environment]\nkey = ['l']");
        assert!(policy.environment.key.is_empty());
    }

    #[test]
    fn a_policy_without_one_is_written_as_before() {
        let text = serde_json::to_string(&Effective::default()).expect("json");
        assert!(!text.contains("environment"), "{text}");
    }
}
