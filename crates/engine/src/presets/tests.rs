//! Presets in homes of their own, with files as the clients write them, and with the real clients
//! where they are there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::gate::IndexKind;

use super::*;

mod bounds;

/// A host with nothing on it.
struct Place {
    directory: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Place {
    fn empty() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut place = Self {
            directory,
            variables: BTreeMap::new(),
        };
        let home = place.path("home");
        fs::create_dir_all(&home).unwrap();
        place.set("HOME", home.to_str().unwrap());
        place.set("PATH", place.path("bin").to_str().unwrap());
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A client that is a script. The shell writes it, so that no descriptor of ours is open.
    fn client(&self, name: &str, script: &str) {
        let path = self.file(
            &format!("bin/{name}.text"),
            format!("#!/bin/sh\n{script}\n"),
        );
        let to = self.path(&format!("bin/{name}"));
        let copied = std::process::Command::new("cp")
            .arg(&path)
            .arg(&to)
            .status()
            .unwrap();
        assert!(copied.success());
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn look_from(&self, name: &str, folder: Option<&Path>) -> Result<Resolution, PresetError> {
        let root = self.directory.path().to_owned();
        look(
            name,
            &Surroundings::of(self.variables.clone(), root, folder),
        )
    }

    fn look(&self, name: &str) -> Result<Resolution, PresetError> {
        self.look_from(name, None)
    }
}

/// The rules, with where each is from; the place of the test is left out.
fn rules(place: &Place, resolution: &Resolution) -> Vec<String> {
    let root = format!("{}/", place.directory.path().display());
    let rules = resolution.preset.rules.iter();
    rules
        .map(|rule| format!("{rule} <- {}", rule.from).replace(&root, ""))
        .collect()
}

fn hosts(resolution: &Resolution) -> Vec<String> {
    let rules = resolution.preset.rules.iter();
    rules.map(|rule| rule.host.to_string()).collect()
}

fn variable<'a>(resolution: &'a Resolution, name: &str) -> Option<&'a str> {
    resolution.preset.env.get(name).map(String::as_str)
}

/// A secret in any form that may be shown or written.
fn shows(resolution: &Resolution, secret: &str) -> bool {
    format!("{resolution:?}").contains(secret)
}

#[test]
fn pip_is_asked_in_all_its_places() {
    let mut place = Place::empty();
    place.file(
        "etc/pip.conf",
        "[global]\nindex-url = https://system.example/simple\n",
    );
    let found = place.look("pypi").unwrap();
    assert_eq!(
        rules(&place, &found),
        ["GET,HEAD system.example:443 <- preset:pypi from etc/pip.conf:2"]
    );
    // Each of these is stronger than the one before.
    for (path, host) in [
        ("home/.pip/pip.conf", "old.example"),
        ("home/.config/pip/pip.conf", "user.example"),
    ] {
        place.file(
            path,
            format!("[global]\nindex_url=https://{host}:8443/s/\n"),
        );
        let found = place.look("pypi").unwrap();
        assert_eq!(hosts(&found), [host]);
    }
    let install = "[install]\nindex-url = https://install.example/\n[global]\nindex-url = https://all.example/\nextra-index-url =\n    https://a.example/\n    http://b.internal:8081/x\nfind-links = /opt/wheels\n  https://links.example/list.html\ntrusted-host = b.internal\n";
    let named = place.file("named.conf", install);
    place.set("PIP_CONFIG_FILE", named.to_str().unwrap());
    let found = place.look("pypi").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD install.example:443 <- preset:pypi from named.conf:2",
            "GET,HEAD a.example:443 <- preset:pypi from named.conf:5",
            "GET,HEAD b.internal:8081 <- preset:pypi from named.conf:5",
            "GET,HEAD links.example:443 <- preset:pypi from named.conf:8",
        ]
    );
    assert_eq!(
        variable(&found, "PIP_EXTRA_INDEX_URL"),
        Some("https://a.example/ http://b.internal:8081/x")
    );
    assert_eq!(variable(&found, "PIP_TRUSTED_HOST"), Some("b.internal"));
    // There is no uv, so it is sent to where pip goes.
    assert_eq!(
        variable(&found, "UV_DEFAULT_INDEX"),
        Some("https://install.example/")
    );
    let public: Vec<bool> = found.preset.indexes.iter().map(|i| i.public).collect();
    assert_eq!(public, [true, true, false, true]);
    place.set("PIP_INDEX_URL", "https://variable.example/simple");
    place.set(
        "PIP_EXTRA_INDEX_URL",
        "https://one.example https://two.example",
    );
    place.set("PIP_FIND_LINKS", "/opt/wheels");
    let found = place.look("pypi").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD variable.example:443 <- preset:pypi from $PIP_INDEX_URL",
            "GET,HEAD one.example:443 <- preset:pypi from $PIP_EXTRA_INDEX_URL",
            "GET,HEAD two.example:443 <- preset:pypi from $PIP_EXTRA_INDEX_URL",
        ]
    );
}

#[test]
fn uv_has_settings_of_its_own() {
    let mut place = Place::empty();
    place.file(
        "home/.config/uv/uv.toml",
        "index-url = \"https://old.example/simple\"\n\n[[index]]\nname = \"a\"\nurl = \"https://a.example/simple\"\n\n[[index]]\nurl = \"https://main.example/simple\"\ndefault = true\n[pip]\nextra-index-url = [\"https://c.example/\"]\n",
    );
    place.set(
        "UV_INDEX",
        "name=https://named.example/?x= https://d.example/",
    );
    let found = place.look("pypi").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD main.example:443 <- preset:pypi from home/.config/uv/uv.toml:8",
            "GET,HEAD a.example:443 <- preset:pypi from home/.config/uv/uv.toml:5",
            "GET,HEAD c.example:443 <- preset:pypi from home/.config/uv/uv.toml:11",
            "GET,HEAD named.example:443 <- preset:pypi from $UV_INDEX",
            "GET,HEAD d.example:443 <- preset:pypi from $UV_INDEX",
        ]
    );
    assert_eq!(
        variable(&found, "PIP_INDEX_URL"),
        Some("https://main.example/simple")
    );
    // Both are there: each keeps its own.
    place.set("PIP_INDEX_URL", "https://pip.example/simple");
    let found = place.look("pypi").unwrap();
    assert_eq!(
        variable(&found, "PIP_INDEX_URL"),
        Some("https://pip.example/simple")
    );
    assert_eq!(
        variable(&found, "UV_DEFAULT_INDEX"),
        Some("https://main.example/simple")
    );
    place.file("home/.config/uv/uv.toml", "index-url = \n");
    match place.look("pypi") {
        Err(PresetError::Parse { line: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_say_their_own_defaults() {
    let place = Place::empty();
    place.client(
        "uv",
        "echo '  --default-index <D>\n     The default package index (by\n    default: <https://own.example/simple>) [env: X]'",
    );
    let found = place.look("pypi").unwrap();
    assert_eq!(
        rules(&place, &found),
        ["GET,HEAD own.example:443 <- preset:pypi from `uv pip install --help`"]
    );
    assert!(found.preset.rules[0].addresses.is_empty());
    place.client("pip", "echo 'pyenv: pip: command not found'; exit 127");
    place.client(
        "pip3",
        "echo '  -i, --index-url <url>   Base URL (default https://pip.example/simple). This'",
    );
    let found = place.look("pypi").unwrap();
    assert_eq!(hosts(&found), ["pip.example", "own.example"]);
    place.client(
        "npm",
        "test \"$PWD\" = / || exit 1; echo registry=https://npm.example/; echo globalconfig=/nonexistent/npmrc",
    );
    let found = place.look("npm").unwrap();
    assert_eq!(
        rules(&place, &found),
        ["GET,HEAD npm.example:443 <- preset:npm from `npm config get registry`"]
    );
    place.client(
        "go",
        "echo '{\"GOPROXY\":\"https://go.example,direct\",\"GOSUMDB\":\"sum.example\",\"GOPRIVATE\":\"\"}'",
    );
    let found = place.look("go").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD go.example:443 <- preset:go from `go env GOPROXY`",
            "GET,HEAD sum.example:443 <- preset:go from `go env GOSUMDB`",
        ]
    );
    assert_eq!(found.preset.indexes.len(), 1);
    assert_eq!(
        variable(&found, "GOPROXY"),
        Some("https://go.example/,direct")
    );
    assert_eq!(variable(&found, "GOSUMDB"), Some("sum.example"));
}

#[test]
fn absent_and_odd_clients_are_said_so() {
    let place = Place::empty();
    for name in ["pypi", "npm", "cargo", "apt", "go"] {
        let error = place.look(name).unwrap_err();
        assert!(
            matches!(error, PresetError::NoClient { .. }),
            "{name}: {error}"
        );
        assert!(error.hint().contains("policy file"));
    }
    assert!(matches!(
        place.look("nothing"),
        Err(PresetError::Unknown(_))
    ));
    for (client, name) in [("npm", "npm"), ("cargo", "cargo"), ("go", "go")] {
        place.client(client, "echo what; echo what >&2");
        let error = place.look(name).unwrap_err();
        assert!(
            matches!(error, PresetError::OddAnswer { .. }),
            "{name}: {error}"
        );
        place.client(client, "/usr/bin/yes & exec /usr/bin/yes >&2");
        let error = place.look(name).unwrap_err();
        assert!(
            matches!(error, PresetError::TooMuch { .. }),
            "{name}: {error}"
        );
    }
    place.client("pip", "printf '\\377\\000--index-url (default ftp://x/)'");
    let error = place.look("pypi").unwrap_err();
    assert!(matches!(error, PresetError::NoHosts { .. }), "{error}");
}

#[test]
fn clients_get_nothing_of_the_callers_environment() {
    let mut place = Place::empty();
    place.set("AWS_SECRET_ACCESS_KEY", "hunter2");
    place.set("LD_PRELOAD", "/nonexistent.so");
    place.set("NODE_OPTIONS", "--require /nonexistent.js");
    place.set("npm_config_loglevel", "silent");
    place.client(
        "npm",
        "/usr/bin/env > \"$HOME/seen\"; echo registry=https://npm.example/; echo globalconfig=/nonexistent/npmrc",
    );
    place.look("npm").unwrap();
    let seen = fs::read_to_string(place.path("home/seen")).unwrap();
    assert!(seen.contains("npm_config_loglevel=silent"), "{seen}");
    for name in ["AWS_SECRET", "LD_PRELOAD", "NODE_OPTIONS"] {
        assert!(!seen.contains(name), "{seen}");
    }
}

#[test]
fn npm_has_scopes_and_credentials() {
    let mut place = Place::empty();
    place.set("COMPANY", "mirror.company.example");
    place.set(
        "NPM_CONFIG_GLOBALCONFIG",
        place.path("global").to_str().unwrap(),
    );
    place.file(
        "global",
        "registry=https://global.example/\n@g:registry=https://g.example\n",
    );
    place.file(
        "home/.npmrc",
        "; comment\nregistry = https://${COMPANY}/npm/\n@a-b:registry=https://scoped.example:8443/\n//mirror.company.example/npm/:_authToken=hunter2\n//scoped.example:8443/:_password=${UNSET}\nfund=false\n",
    );
    let found = place.look("npm").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD mirror.company.example:443 <- preset:npm from home/.npmrc:2",
            "GET,HEAD scoped.example:8443 <- preset:npm from home/.npmrc:3",
            "GET,HEAD g.example:443 <- preset:npm from global:2",
        ]
    );
    let public: Vec<bool> = found.preset.indexes.iter().map(|i| i.public).collect();
    assert_eq!(public, [false, false, true]);
    assert_eq!(found.preset.indexes[0].kind, IndexKind::Npm);
    assert!(!shows(&found, "hunter2"), "{found:?}");
    assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
    assert_eq!(
        variable(&found, "NPM_CONFIG_REGISTRY"),
        Some("https://mirror.company.example/npm/")
    );
    assert_eq!(
        variable(&found, "npm_config_@a-b:registry"),
        Some("https://scoped.example:8443/")
    );
    place.set("npm_config_registry", "https://u:hunter2@variable.example");
    let found = place.look("npm").unwrap();
    assert_eq!(hosts(&found)[0], "variable.example");
    assert!(!shows(&found, "hunter2"), "{found:?}");
}

#[test]
fn cargo_follows_replacements() {
    let mut place = Place::empty();
    let config = |text: &str| place.file("home/.cargo/config.toml", text);
    config(
        "[source.crates-io]\nreplace-with = \"a\"\n[source.a]\nreplace-with = \"b\"\n[source.b]\nregistry = \"sparse+https://user:hunter2@mirror.example/index/\"\n[registries.own-one]\nindex = \"https://git.example/index.git\"\n",
    );
    let found = place.look("cargo").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD mirror.example:443 <- preset:cargo from home/.cargo/config.toml:6",
            "GET,HEAD git.example:443 <- preset:cargo from home/.cargo/config.toml:8",
            "POST git.example:443/**/git-upload-pack <- preset:cargo from home/.cargo/config.toml:8",
        ]
    );
    assert!(!shows(&found, "hunter2"), "{found:?}");
    assert!(found.notes.iter().any(|note| note.contains("[source]")));
    assert_eq!(
        variable(&found, "CARGO_REGISTRIES_OWN_ONE_INDEX"),
        Some("https://git.example/index.git")
    );
    // In a circle nothing is found, and cargo would say so.
    config("[source.crates-io]\nreplace-with = \"a\"\n[source.a]\nreplace-with = \"crates-io\"\n");
    assert!(matches!(
        place.look("cargo"),
        Err(PresetError::NoClient { .. })
    ));
    config("[source.crates-io]\nreplace-with = \"v\"\n[source.v]\ndirectory = \"/vendor\"\n");
    assert!(matches!(
        place.look("cargo"),
        Err(PresetError::NoHosts { .. })
    ));
    place.set("CARGO_REGISTRIES_MY_INDEX", "sparse+https://my.example/");
    place.set("CARGO_REGISTRIES_MY_TOKEN", "hunter2");
    let found = place.look("cargo").unwrap();
    assert_eq!(
        rules(&place, &found),
        ["GET,HEAD my.example:443 <- preset:cargo from $CARGO_REGISTRIES_MY_INDEX"]
    );
    assert!(!found.preset.indexes[0].public);
    assert!(!shows(&found, "hunter2"), "{found:?}");
}

#[test]
fn apt_has_two_formats() {
    let place = Place::empty();
    place.file(
        "etc/apt/sources.list",
        "# deb http://no.example/ x main\ndeb [arch=amd64 signed-by=/a] http://one.example/debian stable main # end\ndeb-src https://u:hunter2@two.example/d stable main\ndeb cdrom:[Debian]/ stable main\ndeb file:/srv x main\n",
    );
    place.file(
        "etc/apt/sources.list.d/b.sources",
        "Types: deb\nURIs: http://three.example/debian\n  https://four.example:8443/x\nSuites: stable\n\n# paragraph\nTypes: deb\nEnabled: no\nURIs: http://off.example/\n\nURIs: mirror+file:///etc/apt/mirrors.txt\n",
    );
    place.file(
        "etc/apt/mirrors.txt",
        "https://five.example/debian\tpriority:1\n",
    );
    place.file(
        "etc/apt/sources.list.d/c.list.save",
        "deb http://no.example/ x main\n",
    );
    let found = place.look("apt").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD one.example:80 <- preset:apt from etc/apt/sources.list:2",
            "GET,HEAD two.example:443 <- preset:apt from etc/apt/sources.list:3",
            "GET,HEAD three.example:80 <- preset:apt from etc/apt/sources.list.d/b.sources:2",
            "GET,HEAD four.example:8443 <- preset:apt from etc/apt/sources.list.d/b.sources:3",
            "GET,HEAD five.example:443 <- preset:apt from etc/apt/mirrors.txt:1",
        ]
    );
    assert!(!shows(&found, "hunter2"), "{found:?}");
}

#[test]
fn go_without_go_has_variables_and_a_file() {
    let mut place = Place::empty();
    place.file(
        "home/.config/go/env",
        "GOPROXY=https://u:hunter2@a.example|https://b.example,off\nGOSUMDB=sum.name+abc https://sums.example/x\nGOPRIVATE=*.corp\n",
    );
    let found = place.look("go").unwrap();
    assert_eq!(
        rules(&place, &found),
        [
            "GET,HEAD a.example:443 <- preset:go from home/.config/go/env:1",
            "GET,HEAD b.example:443 <- preset:go from home/.config/go/env:1",
            "GET,HEAD sums.example:443 <- preset:go from home/.config/go/env:2",
        ]
    );
    assert_eq!(
        variable(&found, "GOPROXY"),
        Some("https://a.example/|https://b.example/,off")
    );
    assert_eq!(
        variable(&found, "GOSUMDB"),
        Some("sum.name+abc https://sums.example/x")
    );
    assert_eq!(variable(&found, "GOPRIVATE"), Some("*.corp"));
    assert!(!shows(&found, "hunter2"), "{found:?}");
    place.set("GOPROXY", "off");
    assert!(place.look("go").is_ok(), "the sums are still asked");
}

/// The real clients of this machine, in a home without settings.
#[test]
fn real_clients_say_which_hosts_they_ask() {
    for (preset, client, kind) in [
        ("pypi", "pip", IndexKind::Simple),
        ("npm", "npm", IndexKind::Npm),
        ("cargo", "cargo", IndexKind::Cargo),
        ("go", "go", IndexKind::Go),
    ] {
        let mut place = Place::empty();
        let path = std::env::var("PATH").unwrap();
        place.set("PATH", &path);
        // Managers of versions keep their things in the real home.
        let home = std::env::var("HOME").unwrap();
        for (name, below) in [("RUSTUP_HOME", ".rustup"), ("PYENV_ROOT", ".pyenv")] {
            let own = std::env::var(name).unwrap_or_else(|_| format!("{home}/{below}"));
            place.set(name, &own);
        }
        let root = PathBuf::from("/nonexistent");
        let surroundings = Surroundings::of(place.variables.clone(), root, None);
        if surroundings.program(client).is_none() {
            eprintln!("SKIPPED {preset}: there is no {client}");
            continue;
        }
        let found = look(preset, &surroundings).unwrap();
        let index = &found.preset.indexes[0];
        assert_eq!((index.kind, index.port), (kind, 443), "{found:?}");
        assert!(index.public);
        assert!(
            found.preset.rules[0].from.file.contains(client),
            "{found:?}"
        );
    }
}
