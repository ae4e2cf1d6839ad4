//! `[images]` and `[repositories]` of a policy file: from where the host itself may fetch.

use super::Document;
use super::reader::{Reader, Value};
use crate::image::registry_name;
use crate::policy::sources::repository_host;

impl Document {
    pub(super) fn read_images<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (_, value) in reader.keys(table, &["registries"]) {
            self.sources.registries = reader.lines(value, |text| match registry_name(text) {
                Some(_) => Ok(()),
                None => Err("a registry is meant: `host` or `host:port`"),
            });
        }
    }

    pub(super) fn read_repositories<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (_, value) in reader.keys(table, &["hosts"]) {
            self.sources.repositories = reader.lines(value, |text| match repository_host(text) {
                Some(_) => Ok(()),
                None => Err("a host is meant: `host` or `host:port`"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::document::{Document, Source};

    fn read(text: &str) -> Result<Vec<String>, String> {
        let source = Source {
            file: "own",
            home: None,
        };
        let read = Document::parse(text.as_bytes(), source);
        let read = read.map_err(|error| error.0[0].message.clone())?;
        let lines = read.sources.registries.into_iter();
        Ok(lines.map(|line| line.text).collect())
    }

    #[test]
    fn hosts_of_repositories_have_one_spelling() {
        let good = "[repositories]\nhosts = ['git.example', 'git.example:8443', '[::1]:3000']";
        assert!(read(good).is_ok());
        for bad in [
            "",
            "*",
            "*.example",
            "https://a",
            "a/b",
            "127.1",
            "a:0",
            "a:+1",
            "u@a",
        ] {
            let text = format!("[repositories]\nhosts = ['{bad}']");
            let said = read(&text).expect_err(bad);
            assert!(said.starts_with("a host is meant"), "{bad}: {said}");
        }
    }

    #[test]
    fn registries_are_hosts_with_ports() {
        let good = "[images]\nregistries = ['registry.example', 'localhost:5000', '[::1]:5000']";
        assert_eq!(read(good).map(|found| found.len()), Ok(3));
        assert_eq!(read("[images]\nregistries = []"), Ok(Vec::new()));
        for (text, message) in [
            ("registries = ['']", "a registry is meant"),
            ("registries = ['*']", "a registry is meant"),
            ("registries = ['*.example']", "a registry is meant"),
            ("registries = ['https://a.example']", "a registry is meant"),
            ("registries = ['a.example/team']", "a registry is meant"),
            ("registries = ['a.example:0']", "a registry is meant"),
            ("registries = ['u@a.example']", "a registry is meant"),
            ("registries = 'a.example'", "a list is meant"),
            ("pull = true", "`pull` is not known here"),
        ] {
            let said = read(&format!("[images]\n{text}")).expect_err(text);
            assert!(said.starts_with(message), "{text}: {said}");
        }
    }
}
