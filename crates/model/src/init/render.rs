//! The proposal as files: what belongs into the repository, and what only its user can grant.

use super::{Proposed, Said};

/// BOUND: a setup of one line that is longer is hard to read.
const WIDE: usize = 76;

/// A text as TOML has it. Only for texts without control characters, which no policy takes.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Proposed {
    /// All commands in one line.
    pub fn setup_line(&self) -> Option<String> {
        let commands: Vec<&str> = self.setup.iter().map(|said| said.value.as_str()).collect();
        (!commands.is_empty()).then(|| commands.join(" && "))
    }

    /// The text of `ringfence.toml`.
    pub fn to_toml(&self) -> String {
        let mut out = String::from(
            "# What an agent's sandbox for this repository starts from. Proposed by `ringfence init`;\n\
             # edit it. It gives nothing of your machine: what it may reach is in your own policy.\n",
        );
        let mut line = |text: &str| {
            out.push_str(text);
            out.push('\n');
        };
        line("\n[environment]");
        match (&self.image, &self.possible_image) {
            (Some(image), _) => line(&commented("image", &quoted(&image.value), &image.why)),
            (None, Some(image)) => {
                line("# without an image, the programs of your machine are used, read-only");
                line(&commented("# image", &quoted(&image.value), &image.why));
            }
            (None, None) => {
                line("# without an image, the programs of your machine are used, read-only");
            }
        }
        if let Some(setup) = self.setup_line() {
            let why = reasons(&self.setup);
            line(&commented("setup", &quoted(&setup), &why));
        }
        if !self.key.is_empty() {
            let key: Vec<String> = self.key.iter().map(|said| quoted(&said.value)).collect();
            let one = format!("[{}]", key.join(", "));
            let why = "a change in one of these runs the setup again";
            if one.len() <= WIDE {
                line(&commented("key", &one, why))
            } else {
                line(&format!("key = [ # {why}"));
                for item in &key {
                    line(&format!("    {item},"));
                }
                line("]");
            }
        }
        if !self.path.is_empty() {
            let path: Vec<String> = self.path.iter().map(|said| quoted(&said.value)).collect();
            let why = reasons(&self.path);
            line(&commented("path", &format!("[{}]", path.join(", ")), &why));
        }
        if !self.env.is_empty() {
            line("\n[environment.env]");
            for (name, said) in &self.env {
                line(&commented(name, &quoted(&said.value), &said.why));
            }
        }
        if !self.cache.is_empty() {
            line("\n[environment.cache] # shared read-only, private on write");
            for said in &self.cache {
                line(&commented(&said.value, "true", &said.why));
            }
        }
        if !self.scratch.is_empty() {
            line("\n[mounts]");
            for area in &self.scratch {
                let value = format!("{{ tmpfs = {} }}", quoted(&area.size));
                line(&commented(&quoted(&area.inside), &value, &area.why));
            }
        }
        out
    }

    /// What the setup may reach, for the user's own policy.
    pub fn network_toml(&self) -> Option<String> {
        if self.network.is_empty() {
            return None;
        }
        let rules: Vec<String> = self
            .network
            .iter()
            .map(|said| quoted(&said.value))
            .collect();
        let why = reasons(&self.network);
        Some(format!(
            "[environment] # what a setup may reach; the agent itself gets none of it\n{}\n",
            commented("network", &format!("[{}]", rules.join(", ")), &why),
        ))
    }
}

/// A line with its reason behind it, or above it where it is long.
fn commented(key: &str, value: &str, why: &str) -> String {
    let line = format!("{key} = {value}");
    match (
        why.is_empty(),
        line.chars().count() + why.chars().count() <= WIDE + 20,
    ) {
        (true, _) => line,
        (false, true) => format!("{line} # {why}"),
        (false, false) => format!("# {why}\n{line}"),
    }
}

fn reasons(said: &[Said]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for one in said {
        if !all.contains(&one.why.as_str()) {
            all.push(&one.why);
        }
    }
    all.join(", ")
}
