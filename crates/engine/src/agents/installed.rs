//! Where an agent's program is on this host, and what of the host its sandbox must see to run it.
//!
//! | it is | shown inside |
//! | --- | --- |
//! | below `/usr` | nothing more: it is there already |
//! | a package in some `node_modules` | that package and those it depends on, below `/opt/ringfence` |
//! | in a virtual environment of Python | that environment and its interpreter, at their own paths |
//! | a program by itself | that file, below `/opt/ringfence` |
//!
//! Nothing else of the host can be read because of it, and nothing can be written. No program is
//! started to find out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use ringfence_jail::plan::may_show_at;
use ringfence_model::init::Need;
use serde_json::Value;

use crate::keeper::INSIDE;
use crate::presets::Surroundings;
use crate::toolchains::{self, Chosen, Shown, is_in_the_system, is_of_the_system};

/// Where packages and programs are inside.
const PLACE: &str = "/opt/ringfence";
/// BOUND: packages that one program is made of; each is a mount.
const MOST_PACKAGES: usize = 48;
/// BOUND: a description of a package, and the first line of a script.
const MOST_BYTES: u64 = 1 << 20;
const MOST_LINE: u64 = 256;

/// A program that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// On the host, without links.
    pub host: PathBuf,
    /// Inside.
    pub inside: PathBuf,
    pub shown: Vec<Shown>,
    /// Directories for `PATH`, inside.
    pub path: Vec<PathBuf>,
    pub set: Vec<(String, String)>,
    pub version: Option<String>,
}

/// Why a program cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInstalled {
    Nowhere,
    /// Its interpreter, or another program, is not there inside.
    Needs(String),
    CannotShow {
        path: PathBuf,
        why: &'static str,
    },
}

/// Looks for a program by its name, or takes the path of one.
pub(super) fn find(around: &Surroundings, program: &str) -> Result<Installed, NotInstalled> {
    let named = if program.starts_with('/') {
        Some(PathBuf::from(program)).filter(|path| !around.is_in_the_folder(path))
    } else {
        around.program(program)
    };
    let named = named.ok_or(NotInstalled::Nowhere)?;
    let host = fs::canonicalize(&named).map_err(|_| NotInstalled::Nowhere)?;
    let mut installed = match () {
        () if is_of_the_system(&host) => Installed {
            inside: host.clone(),
            version: package(&host).and_then(|package| version(&package)),
            ..Installed::default()
        },
        () if package(&host).is_some() => of_node(&host)?,
        () => match virtual_environment(&host) {
            Some(top) => of_python(&host, &top)?,
            None => alone(program, &host)?,
        },
    };
    installed.host = host;
    if let Some(interpreter) = interpreter(&installed.host) {
        with(around, &mut installed, &interpreter)?;
    }
    Ok(installed)
}

/// Adds another program that must be there.
pub(super) fn with(
    around: &Surroundings,
    installed: &mut Installed,
    program: &str,
) -> Result<(), NotInstalled> {
    if is_in_the_system(program) {
        return Ok(());
    }
    let found = toolchains::find(around, &[]);
    let need = Need {
        program: program.to_owned(),
        version: None,
        why: String::new(),
    };
    let chosen = toolchains::choose(around, &found, std::slice::from_ref(&need));
    let Some(Chosen::Toolchain(at)) = chosen.first().map(|choice| &choice.from) else {
        return Err(NotInstalled::Needs(program.to_owned()));
    };
    let toolchain = &found[*at];
    for shown in &toolchain.mounts {
        if !installed.shown.contains(shown) {
            installed.shown.push(shown.clone());
        }
    }
    installed.path.extend(toolchain.path.iter().cloned());
    let set = toolchain.set.iter();
    let set = set.map(|(name, value)| ((*name).to_owned(), value.clone()));
    installed.set.extend(set);
    Ok(())
}

/// The name of a program that a script asks for by `env`; others are at a path of the system.
fn interpreter(script: &Path) -> Option<String> {
    let mut line = Vec::new();
    let file = File::open(script).ok()?;
    file.take(MOST_LINE).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if !words.next()?.ends_with("/env") {
        return None;
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    Some(name.to_owned())
}

/// The package that a file belongs to: the directory below the last `node_modules` on its way.
fn package(file: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = file.components().collect();
    let at = parts
        .iter()
        .rposition(|part| part.as_os_str() == "node_modules")?;
    let scoped = parts.get(at + 1)?.as_os_str().to_str()?.starts_with('@');
    let end = at + if scoped { 3 } else { 2 };
    // The package is above the file.
    (end < parts.len()).then(|| parts[..end].iter().collect())
}

fn described(package: &Path) -> Option<Value> {
    let mut text = Vec::new();
    let file = File::open(package.join("package.json")).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn version(package: &Path) -> Option<String> {
    let version = described(package)?.get("version")?.as_str()?.to_owned();
    is_version(&version).then_some(version)
}

fn is_version(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    let digit = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_digit());
    digit && text.len() <= 64 && text.contains('.') && text.bytes().all(plain)
}

/// A package, and those beside it that it depends on.
fn of_node(host: &Path) -> Result<Installed, NotInstalled> {
    let cannot = |why| NotInstalled::CannotShow {
        path: host.to_owned(),
        why,
    };
    let top = package(host).ok_or(NotInstalled::Nowhere)?;
    let name = package_name(&top).ok_or_else(|| cannot("its package has no plain name"))?;
    let mut packages = BTreeMap::from([(name.clone(), top.clone())]);
    let mut waiting = vec![top.clone()];
    while let Some(package) = waiting.pop() {
        for name in dependencies(&package) {
            if packages.contains_key(&name) {
                continue;
            }
            let Some(found) = beside(&package, &name) else {
                continue;
            };
            if packages.len() == MOST_PACKAGES {
                return Err(cannot(
                    "it is spread over too many packages; one that is installed for all of the user's folders has them inside",
                ));
            }
            packages.insert(name, found.clone());
            waiting.push(found);
        }
    }
    let modules = Path::new(PLACE).join("node_modules");
    let shown = packages.into_iter().map(|(name, host)| Shown {
        inside: modules.join(name),
        host,
    });
    let rest = host.strip_prefix(&top).unwrap_or(Path::new(""));
    Ok(Installed {
        inside: modules.join(name).join(rest),
        shown: shown.collect(),
        version: version(&top),
        ..Installed::default()
    })
}

/// `name` or `@scope/name`, as it stands below its `node_modules`.
fn package_name(package: &Path) -> Option<String> {
    let parts: Vec<&str> = package.iter().filter_map(|part| part.to_str()).collect();
    let at = parts.iter().rposition(|part| *part == "node_modules")?;
    let name = parts[at + 1..].join("/");
    is_package(&name).then_some(name)
}

/// HOSTILE: names in the description of a package were chosen by whoever made it; one becomes a path.
fn is_package(name: &str) -> bool {
    let plain = |part: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(fine)
    };
    match name.strip_prefix('@').map(|rest| rest.split_once('/')) {
        Some(Some((scope, rest))) => plain(scope) && plain(rest),
        Some(None) => false,
        None => plain(name),
    }
}

fn dependencies(package: &Path) -> Vec<String> {
    let Some(described) = described(package) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for key in ["dependencies", "optionalDependencies"] {
        let table = described.get(key).and_then(Value::as_object);
        names.extend(table.into_iter().flat_map(|table| table.keys().cloned()));
    }
    names.retain(|name| is_package(name));
    names
}

/// A package beside this one that is not inside of it already. A link counts where it leads to a
/// package as well.
fn beside(package: &Path, name: &str) -> Option<PathBuf> {
    if package.join("node_modules").join(name).exists() {
        return None;
    }
    let mut modules = package.parent()?;
    if modules.file_name()?.to_str()?.starts_with('@') {
        modules = modules.parent()?;
    }
    let found = fs::canonicalize(modules.join(name)).ok()?;
    let is_package = found.is_dir() && described(&found).is_some();
    (is_package && self::package(&found.join("package.json")).as_deref() == Some(&found))
        .then_some(found)
}

/// The virtual environment of Python that a program is in.
fn virtual_environment(host: &Path) -> Option<PathBuf> {
    let top = host.parent()?.parent()?;
    top.join("pyvenv.cfg").is_file().then(|| top.to_owned())
}

/// Shown at its own path, which stands in its scripts.
fn of_python(host: &Path, top: &Path) -> Result<Installed, NotInstalled> {
    let cannot = |path: &Path, why| NotInstalled::CannotShow {
        path: path.to_owned(),
        why,
    };
    let mut shown = vec![top.to_owned()];
    let python = fs::canonicalize(top.join("bin/python"));
    let python = python.map_err(|_| cannot(host, "its interpreter is gone"))?;
    if !is_of_the_system(&python) && !python.starts_with(top) {
        let prefix = python.parent().and_then(Path::parent);
        shown.push(prefix.ok_or(NotInstalled::Nowhere)?.to_owned());
    }
    for path in &shown {
        if !may_show_at(path, Path::new(INSIDE)) {
            return Err(cannot(
                path,
                "a sandbox has something of its own at this path",
            ));
        }
    }
    let same = |path: PathBuf| Shown {
        inside: path.clone(),
        host: path,
    };
    Ok(Installed {
        inside: host.to_owned(),
        shown: shown.into_iter().map(same).collect(),
        ..Installed::default()
    })
}

/// One file. A script of Python would need modules that are elsewhere.
fn alone(program: &str, host: &Path) -> Result<Installed, NotInstalled> {
    let cannot = |why| {
        Err(NotInstalled::CannotShow {
            path: host.to_owned(),
            why,
        })
    };
    let mut first = Vec::new();
    let opened = File::open(host).map(|file| file.take(MOST_LINE).read_to_end(&mut first));
    if opened.is_err() {
        return cannot("it cannot be read");
    }
    let line = first
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    if line.starts_with(b"#!") && memchr::memmem::find(line, b"python").is_some() {
        return cannot("it is a script of Python outside of a virtual environment");
    }
    let name = Path::new(program).file_name().unwrap_or_default();
    let inside = Path::new(PLACE).join("bin").join(name);
    let named = host.file_name().and_then(|name| name.to_str());
    Ok(Installed {
        shown: vec![Shown {
            host: host.to_owned(),
            inside: inside.clone(),
        }],
        inside,
        // Some installers keep each version in a file of that name.
        version: named.filter(|name| is_version(name)).map(str::to_owned),
        ..Installed::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Bench {
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                directory: tempfile::tempdir().unwrap(),
            }
        }

        fn at(&self, path: &str) -> PathBuf {
            fs::canonicalize(self.directory.path()).unwrap().join(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(to, path).unwrap();
        }

        fn find(&self, folder: Option<&str>) -> Result<Installed, NotInstalled> {
            let path = format!("relative:{}", self.at("bin").display());
            let variables = BTreeMap::from([("PATH".to_owned(), path)]);
            let folder = folder.map(|folder| self.at(folder));
            let around = Surroundings::of(variables, "/".into(), folder.as_deref());
            find(&around, "agent")
        }
    }

    #[test]
    fn a_package_is_shown_with_what_it_depends_on_and_nothing_else() {
        let bench = Bench::new();
        let modules = "lib/node_modules";
        bench.put(
            &format!("{modules}/@s/agent/bin/run.js"),
            "#!/usr/bin/env sh\n",
        );
        bench.put(
            &format!("{modules}/@s/agent/package.json"),
            r#"{"version":"1.2.3","dependencies":{"one":"1","own":"1","../../secret":"1","gone":"1"},
                "optionalDependencies":{"@s/native":"1"}}"#,
        );
        bench.put(
            &format!("{modules}/@s/agent/node_modules/own/package.json"),
            "{}",
        );
        bench.put(
            &format!("{modules}/one/package.json"),
            r#"{"dependencies":{"two":"1"}}"#,
        );
        bench.put("store/node_modules/two/package.json", "{}");
        bench.link(&format!("{modules}/two"), "../../store/node_modules/two");
        bench.put(&format!("{modules}/@s/native/package.json"), "{}");
        bench.put(&format!("{modules}/other/package.json"), "{}");
        bench.put("secret/package.json", "{}");
        bench.link("bin/agent", "../lib/node_modules/@s/agent/bin/run.js");
        let found = bench.find(None).unwrap();
        let inside = "/opt/ringfence/node_modules/@s/agent/bin/run.js";
        assert_eq!(found.inside, Path::new(inside));
        assert_eq!(found.version.as_deref(), Some("1.2.3"));
        let shown: Vec<(String, PathBuf)> = found
            .shown
            .iter()
            .map(|shown| (shown.inside.display().to_string(), shown.host.clone()))
            .collect();
        let expected = [
            ("@s/agent", "lib/node_modules/@s/agent"),
            ("@s/native", "lib/node_modules/@s/native"),
            ("one", "lib/node_modules/one"),
            ("two", "store/node_modules/two"),
        ];
        let expected: Vec<(String, PathBuf)> = expected
            .iter()
            .map(|(name, host)| {
                (
                    format!("/opt/ringfence/node_modules/{name}"),
                    bench.at(host),
                )
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_link_beside_that_leads_elsewhere_is_not_followed() {
        let bench = Bench::new();
        bench.put("lib/node_modules/agent/run", "");
        let text = r#"{"dependencies":{"keys":"1","home":"1"}}"#;
        bench.put("lib/node_modules/agent/package.json", text);
        bench.put("keys/package.json", "{}");
        bench.link("lib/node_modules/keys", "../../keys");
        bench.link("lib/node_modules/home", "/");
        bench.link("bin/agent", "../lib/node_modules/agent/run");
        assert_eq!(bench.find(None).unwrap().shown.len(), 1);
    }

    #[test]
    fn a_file_by_itself_is_all_that_is_shown() {
        let bench = Bench::new();
        bench.put("share/agent/versions/2.1.0", "\x7fELF");
        bench.link("bin/agent", "../share/agent/versions/2.1.0");
        let found = bench.find(None).unwrap();
        assert_eq!(found.inside, Path::new("/opt/ringfence/bin/agent"));
        assert_eq!(found.version.as_deref(), Some("2.1.0"));
        assert_eq!(found.shown.len(), 1);
        assert_eq!(found.shown[0].host, bench.at("share/agent/versions/2.1.0"));
    }

    #[test]
    fn what_an_agent_may_have_written_is_not_found() {
        let bench = Bench::new();
        bench.put("folder/agent", "");
        bench.link("bin/agent", "../folder/agent");
        assert_eq!(bench.find(Some("folder")), Err(NotInstalled::Nowhere));
        assert!(bench.find(Some("elsewhere")).is_ok());
    }

    #[test]
    fn what_cannot_work_inside_is_told() {
        let bench = Bench::new();
        assert_eq!(bench.find(None), Err(NotInstalled::Nowhere));
        bench.put("bin/agent", "#!/usr/bin/env no-such-interpreter\n");
        let needs = NotInstalled::Needs("no-such-interpreter".to_owned());
        assert_eq!(bench.find(None), Err(needs));
        bench.put("bin/agent", "#!/opt/u/python3\nimport x\n");
        let found = bench.find(None);
        assert!(
            matches!(found, Err(NotInstalled::CannotShow { .. })),
            "{found:?}"
        );
    }
}
