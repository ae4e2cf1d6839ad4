//! Managers that keep each version in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Host, MOST_ENTRIES, Pinned, Toolchain, programs};

/// BOUND: a file that says which version is the usual one.
const MOST_BYTES: u64 = 64 << 10;

/// One such manager and one language.
struct Kept {
    manager: &'static str,
    /// The program by which a repository pins its versions.
    program: &'static str,
    variables: &'static [&'static str],
    homes: &'static [&'static str],
    /// From there to the directory that has the versions.
    below: &'static str,
    /// From a version to what has `bin`.
    inner: &'static str,
    usual: Usual,
    /// What may hold credentials, from `inner`.
    never: &'static [&'static str],
    /// A variable that has the path of the version, or of all of them.
    set: Option<(&'static str, Of)>,
}

/// Where the user's own choice stands.
enum Usual {
    /// In the first line of a file.
    File(&'static str),
    /// A link to the version.
    Link(&'static str),
    /// In a file of several tools, under this name.
    Tools(&'static str),
    Volta,
    Nowhere,
}

enum Of {
    Version,
    All,
}

const PYTHON: &[&str] = &["pip.conf", "etc/pip.conf", ".pypirc"];
const NODE: &[&str] = &["etc"];

const ALL: &[Kept] = &[
    Kept {
        manager: "pyenv",
        program: "python3",
        variables: &["PYENV_ROOT"],
        homes: &[".pyenv"],
        below: "versions",
        inner: "",
        usual: Usual::File("version"),
        never: PYTHON,
        set: None,
    },
    Kept {
        manager: "uv python",
        program: "python3",
        variables: &["UV_PYTHON_INSTALL_DIR"],
        homes: &[".local/share/uv/python"],
        below: "",
        inner: "",
        usual: Usual::Nowhere,
        never: PYTHON,
        set: Some(("UV_PYTHON_INSTALL_DIR", Of::All)),
    },
    Kept {
        manager: "nvm",
        program: "node",
        variables: &["NVM_DIR"],
        homes: &[".nvm", ".config/nvm"],
        below: "versions/node",
        inner: "",
        usual: Usual::File("alias/default"),
        never: NODE,
        set: None,
    },
    Kept {
        manager: "fnm",
        program: "node",
        variables: &["FNM_DIR"],
        homes: &[".local/share/fnm", ".fnm"],
        below: "node-versions",
        inner: "installation",
        usual: Usual::Link("aliases/default"),
        never: NODE,
        set: None,
    },
    Kept {
        manager: "volta",
        program: "node",
        variables: &["VOLTA_HOME"],
        homes: &[".volta"],
        below: "tools/image/node",
        inner: "",
        usual: Usual::Volta,
        never: NODE,
        set: None,
    },
    Kept {
        manager: "n",
        program: "node",
        variables: &["N_PREFIX"],
        homes: &["n", ".n"],
        below: "n/versions/node",
        inner: "",
        usual: Usual::Nowhere,
        never: NODE,
        set: None,
    },
    Kept {
        manager: "rbenv",
        program: "ruby",
        variables: &["RBENV_ROOT"],
        homes: &[".rbenv"],
        below: "versions",
        inner: "",
        usual: Usual::File("version"),
        never: &["etc/gemrc"],
        set: None,
    },
    Kept {
        manager: "go",
        program: "go",
        variables: &[],
        homes: &["sdk"],
        below: "",
        inner: "",
        usual: Usual::Nowhere,
        never: &["go.env.local"],
        set: Some(("GOROOT", Of::Version)),
    },
    Kept {
        manager: "sdkman",
        program: "java",
        variables: &["SDKMAN_DIR"],
        homes: &[".sdkman"],
        below: "candidates/java",
        inner: "",
        usual: Usual::Link("candidates/java/current"),
        never: &[],
        set: Some(("JAVA_HOME", Of::Version)),
    },
    Kept {
        manager: "sdkman gradle",
        program: "gradle",
        variables: &["SDKMAN_DIR"],
        homes: &[".sdkman"],
        below: "candidates/gradle",
        inner: "",
        usual: Usual::Link("candidates/gradle/current"),
        never: &["init.d", "gradle.properties"],
        set: None,
    },
    Kept {
        manager: "sdkman maven",
        program: "mvn",
        variables: &["SDKMAN_DIR"],
        homes: &[".sdkman"],
        below: "candidates/maven",
        inner: "",
        usual: Usual::Link("candidates/maven/current"),
        // `conf/settings.xml` is where passwords of a company's mirror are.
        never: &["conf"],
        set: None,
    },
    Kept {
        manager: "juliaup",
        program: "julia",
        variables: &[],
        homes: &[".julia/juliaup"],
        below: "",
        inner: "",
        usual: Usual::Nowhere,
        never: &[],
        set: None,
    },
];

/// Managers of many languages: the name of a plugin, the program, from a version to what has `bin`.
const PLUGINS: &[(&str, &str, &str, &[&str])] = &[
    ("nodejs", "node", "", NODE),
    ("node", "node", "", NODE),
    ("python", "python3", "", PYTHON),
    ("golang", "go", "go", &[]),
    ("go", "go", "", &[]),
    (
        "rust",
        "cargo",
        "",
        &["credentials", "credentials.toml", "config.toml"],
    ),
    ("ruby", "ruby", "", &["etc/gemrc"]),
    ("java", "java", "", &[]),
    ("bun", "bun", "", &[]),
    ("deno", "deno", "", &[]),
    ("uv", "uv", "", &[]),
    ("pnpm", "pnpm", "", &[]),
    ("poetry", "poetry", "", &[]),
    ("elixir", "mix", "", &[]),
    ("erlang", "erl", "", &[]),
    ("julia", "julia", "", &[]),
    ("zig", "zig", "", &[]),
];

pub(super) fn all(host: &Host<'_>, pins: &[Pinned]) -> Vec<Toolchain> {
    let mut found: Vec<Toolchain> = ALL
        .iter()
        .filter_map(|kept| one(host, kept, pins))
        .collect();
    for (manager, variables, homes) in [
        ("asdf", &["ASDF_DATA_DIR", "ASDF_DIR"][..], &[".asdf"][..]),
        ("mise", &["MISE_DATA_DIR"], &[".local/share/mise"]),
    ] {
        let Some((base, from)) = host.base(variables, homes) else {
            continue;
        };
        for (plugin, program, inner, never) in PLUGINS {
            let place = Place {
                all: base.join("installs").join(plugin),
                from: &from,
                inner,
                usual: usual(host, &base, &Usual::Tools(plugin)),
                never,
            };
            found.extend(chosen(host, manager, program, &place, None, pins));
        }
    }
    found
}

fn one(host: &Host<'_>, kept: &Kept, pins: &[Pinned]) -> Option<Toolchain> {
    let (base, from) = host.base(kept.variables, kept.homes)?;
    let place = Place {
        all: below(&base, kept.below),
        from: &from,
        inner: kept.inner,
        usual: usual(host, &base, &kept.usual),
        never: kept.never,
    };
    chosen(
        host,
        kept.manager,
        kept.program,
        &place,
        kept.set.as_ref(),
        pins,
    )
}

/// Where the versions of one program are.
struct Place<'p> {
    all: PathBuf,
    from: &'p str,
    inner: &'p str,
    usual: Option<String>,
    never: &'p [&'p str],
}

fn chosen(
    host: &Host<'_>,
    manager: &'static str,
    program: &str,
    place: &Place<'_>,
    set: Option<&(&'static str, Of)>,
    pins: &[Pinned],
) -> Option<Toolchain> {
    let installed = installed(&place.all, place.inner);
    let newest = newest(&installed, |_| true)?;
    let mut notes = Vec::new();
    let pin = pins.iter().find(|pin| pin.program == program);
    let pinned = pin.and_then(|pin| {
        let found = fitting(&installed, &pin.version);
        if found.is_none() {
            // HOSTILE: the words of the pin are a repository's; whoever prints them cleans them.
            notes.push(format!(
                "{} wants {}, which is not there",
                pin.place, pin.version
            ));
        }
        Some((found?, pin.place.clone()))
    });
    let usual = || {
        let version = fitting(&installed, place.usual.as_deref()?)?;
        Some((version, format!("your choice in {}", place.from)))
    };
    let (version, why) = pinned
        .or_else(usual)
        .unwrap_or_else(|| (newest, format!("the newest in {}", place.from)));
    let directory = below(&place.all.join(version), place.inner);
    let mounts = host.without(&directory, place.never);
    let bin = directory.join("bin");
    if mounts.is_empty() {
        notes.push("it cannot be shown inside".to_owned());
    }
    let value = |of: &Of| match of {
        Of::Version => directory.clone(),
        Of::All => place.all.clone(),
    };
    let set = set.map(|(name, of)| (*name, value(of).to_string_lossy().into_owned()));
    Some(Toolchain {
        manager,
        version: Some(numbers_of(version).map_or(version.clone(), |at| version[at..].to_owned())),
        why,
        programs: programs(&bin),
        mounts,
        path: vec![bin],
        set: set.into_iter().collect(),
        notes,
    })
}

/// A path below another; the same where that is no name.
fn below(path: &Path, name: &str) -> PathBuf {
    match name {
        "" => path.to_owned(),
        name => path.join(name),
    }
}

/// Names of versions: directories, no links, with programs in them.
fn installed(directory: &Path, inner: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries
        .take(MOST_ENTRIES)
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let version = directory.join(name).join(inner);
            // What stands on another version is no toolchain of its own.
            version.join("bin").is_dir() && !version.join("pyvenv.cfg").exists()
        })
        .collect();
    names.sort();
    names
}

/// The version that the user has chosen, in the words of the manager.
fn usual(host: &Host<'_>, base: &Path, usual: &Usual) -> Option<String> {
    match usual {
        Usual::Nowhere => None,
        Usual::File(name) => {
            let text = read(&base.join(name))?;
            let mut lines = text.lines().map(str::trim);
            let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
            // An alias of an alias, such as `lts/*`, says nothing more here.
            Some(line.split_whitespace().next()?.to_owned())
        }
        Usual::Link(name) => {
            let target = fs::canonicalize(base.join(name)).ok()?;
            let mut names = target.components().rev().filter_map(|part| {
                let name = part.as_os_str().to_str()?;
                numbers_of(name).map(|_| name.to_owned())
            });
            names.next()
        }
        Usual::Volta => {
            let text = read(&base.join("tools/user/platform.json"))?;
            let platform: Value = serde_json::from_str(&text).ok()?;
            Some(platform.get("node")?.get("runtime")?.as_str()?.to_owned())
        }
        Usual::Tools(plugin) => {
            let of_asdf = host
                .around
                .home(".tool-versions")
                .and_then(|path| read(&path));
            let line = of_asdf
                .iter()
                .flat_map(|text| text.lines())
                .find_map(|line| {
                    let mut words = line.split_whitespace();
                    let is_it = words.next() == Some(*plugin);
                    words.next().filter(|_| is_it).map(str::to_owned)
                });
            let of_mise = || {
                let text = read(&host.around.config("mise/config.toml")?)?;
                let table: toml::Table = text.parse().ok()?;
                Some(table.get("tools")?.get(*plugin)?.as_str()?.to_owned())
            };
            line.or_else(of_mise)
        }
    }
}

fn read(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let flags =
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Where the numbers of a version begin: `v22.1`, `cpython-3.12.1-linux`, `go1.22`.
fn numbers_of(name: &str) -> Option<usize> {
    name.find(|c: char| c.is_ascii_digit())
}

/// The numbers of a version.
fn numbers(name: &str) -> Vec<u64> {
    let text = numbers_of(name).map_or("", |at| &name[at..]);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end]
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

fn newest(installed: &[String], takes: impl Fn(&[u64]) -> bool) -> Option<&String> {
    installed
        .iter()
        .filter(|name| {
            let numbers = numbers(name);
            !numbers.is_empty() && takes(&numbers)
        })
        .max_by_key(|name| numbers(name))
}

/// The installed version that is meant by these words of a repository or a manager.
fn fitting<'v>(installed: &'v [String], wanted: &str) -> Option<&'v String> {
    let wanted = wanted.trim();
    let plain = wanted.trim_start_matches(['v', '=']);
    if let Some(exact) = installed
        .iter()
        .find(|name| *name == wanted || name.trim_start_matches('v') == plain)
    {
        return Some(exact);
    }
    let asked = numbers(plain);
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
    match plain {
        "node" | "stable" | "latest" | "*" | "default" => newest(installed, |_| true),
        text if text.starts_with("lts") => newest(installed, |_| true),
        // HOSTILE: a range of nothing.
        _ if asked.is_empty() => None,
        text if text.starts_with(">=") => newest(installed, |own| own >= asked.as_slice()),
        text if text.starts_with('^') => newest(installed, |own| {
            own >= asked.as_slice() && own[0] == asked[0]
        }),
        text if text.starts_with('~') => {
            let kept = asked.len().saturating_sub(1).max(1);
            newest(installed, |own| {
                own >= asked.as_slice() && own.get(..kept) == asked.get(..kept)
            })
        }
        text if !text.is_empty() && digits(text.trim_end_matches(".x")) => {
            newest(installed, |own| own.starts_with(&asked))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_what_is_asked_for() {
        let installed: Vec<String> = ["v18.20.1", "v20.9.0", "v20.10.0", "v22.1.0", "odd"]
            .map(str::to_owned)
            .to_vec();
        for (wanted, expected) in [
            ("v20.9.0", Some("v20.9.0")),
            ("20.9.0", Some("v20.9.0")),
            ("20", Some("v20.10.0")),
            ("20.x", Some("v20.10.0")),
            ("v18", Some("v18.20.1")),
            (">=18", Some("v22.1.0")),
            (">= 23", None),
            ("^20.9.1", Some("v20.10.0")),
            ("~20.9.0", Some("v20.9.0")),
            ("^21", None),
            ("lts/*", Some("v22.1.0")),
            ("node", Some("v22.1.0")),
            ("odd", Some("odd")),
            ("2", None),
            ("", None),
            ("^", None),
            ("~", None),
            ("../../etc", None),
            ("99999999999999999999999999", None),
        ] {
            let found = fitting(&installed, wanted).map(String::as_str);
            assert_eq!(found, expected, "{wanted}");
        }
    }
}
