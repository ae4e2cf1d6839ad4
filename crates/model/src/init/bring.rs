//! Programs that a setup can install itself, where neither the host nor an image has them.

use super::{Proposed, Said, add};

/// BOUND: no version is longer.
const MAX_VERSION: usize = 32;

impl Proposed {
    /// Lets the setup bring this program before its first use. `false`: it cannot, or is not used.
    pub fn bring(&mut self, program: &str) -> bool {
        let used = |said: &Said| {
            let line = said.value.rsplit("&& ").next().unwrap_or(&said.value);
            line.starts_with(&format!("{program} "))
        };
        let Some(at) = self.setup.iter().position(used) else {
            return false;
        };
        let Some(value) = self.command_for(program, at) else {
            return false;
        };
        let why = format!("{program} is not on this machine");
        self.setup.insert(at, Said { value, why });
        add(
            &mut self.path,
            "~/.local/bin",
            "programs that the setup installs",
        );
        true
    }

    fn command_for(&self, program: &str, at: usize) -> Option<String> {
        let mut needs = self.needs.iter().filter(|need| need.program == program);
        // HOSTILE: the repository chose the version, and it becomes a word of a command.
        let exact = |version: &&str| {
            let fine = |byte: u8| byte.is_ascii_digit() || byte == b'.';
            version.len() <= MAX_VERSION && version.bytes().all(fine) && !version.is_empty()
        };
        let pinned = needs.find_map(|need| Some(need.version.as_ref()?.value.as_str()));
        let pinned = pinned.filter(exact);
        let of_npm = |version: &str| {
            Some(format!(
                "npm install --global --prefix ~/.local {program}@{version}"
            ))
        };
        match program {
            "uv" => {
                let version = pinned.map_or_else(String::new, |version| format!("=={version}"));
                Some(format!(
                    "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user uv{version}"
                ))
            }
            // The one that takes lock files of the last years.
            "pnpm" => of_npm(pinned.unwrap_or("10")),
            // Later ones are no packages of that name.
            "yarn" if self.setup[at].value.contains("--frozen-lockfile") => of_npm(
                pinned
                    .filter(|version| version.starts_with("1."))
                    .unwrap_or("1"),
            ),
            _ => None,
        }
    }
}
