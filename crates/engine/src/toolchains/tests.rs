//! Homes as managers of versions leave them.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use ringfence_model::init::{Need, Said};
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::{Line, Mount, Variable};

use super::*;

/// A host whose home is a directory of its own. It is in `/tmp`, where nothing can be shown inside, so
/// that rule is left to its own test.
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
        let home = place.home().to_str().unwrap().to_owned();
        place.variables.insert("HOME".to_owned(), home);
        place
    }

    fn home(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    fn program(&self, path: &str) {
        self.file(path, "#!/bin/sh\n");
        let path = self.home().join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.home().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn around(&self) -> Surroundings {
        Surroundings::of(self.variables.clone(), PathBuf::from("/"), None)
    }

    fn find(&self, pins: &[(&str, &str)]) -> Vec<Toolchain> {
        let pins: Vec<Pinned> = pins
            .iter()
            .map(|(program, version)| Pinned {
                program: (*program).to_owned(),
                version: (*version).to_owned(),
                place: "a pin".to_owned(),
            })
            .collect();
        found(&self.around(), &pins)
    }

    /// What would be shown, below the home.
    fn shown(&self, pins: &[(&str, &str)]) -> Vec<String> {
        let found = self.find(pins);
        let mounts = found.iter().flat_map(|toolchain| &toolchain.mounts);
        mounts
            .map(|shown| {
                let rest = shown.host.strip_prefix(self.home()).unwrap();
                rest.to_str().unwrap().to_owned()
            })
            .collect()
    }
}

fn found(around: &Surroundings, pins: &[Pinned]) -> Vec<Toolchain> {
    let may_show = |_: &Path| true;
    find_on(&Host { around, may_show }, pins)
}

#[test]
fn nothing_is_proposed_that_no_mount_can_be() {
    let place = Place::empty();
    place.program(".bun/bin/bun");
    assert_eq!(place.find(&[]).len(), 1);
    let around = place.around();
    let may_show = |_: &Path| false;
    assert_eq!(
        find_on(
            &Host {
                around: &around,
                may_show
            },
            &[]
        ),
        []
    );
}

#[test]
fn each_manager_is_found_and_only_its_programs_are_shown() {
    for (files, shown, manager) in [
        (
            &[
                ".rustup/toolchains/stable-x/bin/cargo",
                ".rustup/settings.toml",
                ".rustup/update-hashes/x",
                ".cargo/bin/cargo",
                ".cargo/credentials.toml",
                ".cargo/config.toml",
            ][..],
            &[
                ".rustup/toolchains",
                ".rustup/settings.toml",
                ".rustup/update-hashes",
                ".cargo/bin",
            ][..],
            "rustup",
        ),
        (
            &[".pyenv/versions/3.12.1/bin/python3", ".pyenv/shims/python3"],
            &[".pyenv/versions/3.12.1"],
            "pyenv 3.12.1",
        ),
        (
            &[".nvm/versions/node/v22.1.0/bin/node", ".nvm/.git/config"],
            &[".nvm/versions/node/v22.1.0"],
            "nvm 22.1.0",
        ),
        (
            &[
                ".local/share/fnm/node-versions/v20.0.0/installation/bin/node",
                ".local/share/fnm/x",
            ],
            &[".local/share/fnm/node-versions/v20.0.0/installation"],
            "fnm 20.0.0",
        ),
        (
            &[
                ".volta/tools/image/node/18.0.0/bin/node",
                ".volta/hooks.json",
            ],
            &[".volta/tools/image/node/18.0.0"],
            "volta 18.0.0",
        ),
        (
            &[
                ".local/bin/uv",
                ".local/bin/secret-script",
                ".local/share/uv/credentials/credentials.toml",
            ],
            &[".local/bin/uv"],
            "uv",
        ),
        (
            &[".asdf/installs/nodejs/21.0.0/bin/node", ".asdfrc"],
            &[".asdf/installs/nodejs/21.0.0"],
            "asdf 21.0.0",
        ),
        (
            &[".local/share/mise/installs/go/1.23.0/bin/go"],
            &[".local/share/mise/installs/go/1.23.0"],
            "mise 1.23.0",
        ),
        (
            &[
                ".sdkman/candidates/java/21.0.2-tem/bin/java",
                ".sdkman/etc/config",
            ],
            &[".sdkman/candidates/java/21.0.2-tem"],
            "sdkman 21.0.2-tem",
        ),
        (&["go/bin/gopls", "go/pkg/mod/x"], &["go/bin"], "go tools"),
        (&["sdk/go1.22.3/bin/go"], &["sdk/go1.22.3"], "go 1.22.3"),
        (
            &[".bun/bin/bun", ".bun/install/cache/x"],
            &[".bun/bin"],
            "bun",
        ),
        (&[".deno/bin/deno"], &[".deno/bin"], "deno"),
        (
            &[".local/share/pnpm/pnpm", ".local/share/pnpm/store/x"],
            &[".local/share/pnpm/pnpm"],
            "pnpm",
        ),
        (
            &[
                ".ghcup/bin/ghc",
                ".ghcup/ghc/9.6/bin/ghc",
                ".ghcup/config.yaml",
            ],
            &[".ghcup/bin", ".ghcup/ghc"],
            "ghcup",
        ),
        (
            &[
                ".julia/juliaup/julia-1.11.2+0.x64.linux.gnu/bin/julia",
                ".julia/servers/x/auth.toml",
            ],
            &[".julia/juliaup/julia-1.11.2+0.x64.linux.gnu"],
            "juliaup 1.11.2+0.x64.linux.gnu",
        ),
        (
            &[".rbenv/versions/3.3.0/bin/ruby"],
            &[".rbenv/versions/3.3.0"],
            "rbenv 3.3.0",
        ),
        (&[".ssh/id_ed25519", ".netrc", "bin/tool"], &[], ""),
    ] {
        let place = Place::empty();
        for file in files {
            place.program(file);
        }
        assert_eq!(place.shown(&[]), shown, "{files:?}");
        let titles: Vec<String> = place.find(&[]).iter().map(Toolchain::title).collect();
        assert_eq!(titles.concat(), manager);
    }
}

#[test]
fn a_version_with_a_credential_is_shown_in_parts() {
    let place = Place::empty();
    let node = ".nvm/versions/node/v22.1.0";
    place.program(&format!("{node}/bin/node"));
    place.file(&format!("{node}/lib/x"), "");
    place.file(
        &format!("{node}/etc/npmrc"),
        "//registry.example/:_authToken=canary",
    );
    place.file(&format!("{node}/README.md"), "");
    assert_eq!(
        place.shown(&[]),
        [format!("{node}/bin"), format!("{node}/lib")]
    );
    let python = ".pyenv/versions/3.12.0";
    let place = Place::empty();
    place.program(&format!("{python}/bin/python3"));
    place.file(&format!("{python}/lib/x"), "");
    place.file(
        &format!("{python}/pip.conf"),
        "index-url = https://u:canary@index.example",
    );
    assert_eq!(
        place.shown(&[]),
        [format!("{python}/bin"), format!("{python}/lib")]
    );
    let place = Place::empty();
    let maven = ".sdkman/candidates/maven/3.9.9";
    for part in ["bin/mvn", "boot/x", "lib/x", "conf/settings.xml"] {
        place.program(&format!("{maven}/{part}"));
    }
    let parts = ["bin", "boot", "lib"].map(|part| format!("{maven}/{part}"));
    assert_eq!(place.shown(&[]), parts);
}

#[test]
fn the_version_is_the_pinned_one_else_the_users_else_the_newest() {
    let place = Place::empty();
    for version in ["v18.1.0", "v20.2.0", "v22.3.0"] {
        place.program(&format!(".nvm/versions/node/{version}/bin/node"));
    }
    let chosen = |pins: &[(&str, &str)]| {
        let found = place.find(pins);
        (
            found[0].version.clone().unwrap(),
            found[0].why.clone(),
            found[0].notes.len(),
        )
    };
    assert_eq!(
        chosen(&[]),
        ("22.3.0".to_owned(), "the newest in ~/.nvm".to_owned(), 0)
    );
    place.file(".nvm/alias/default", "20\n");
    assert_eq!(
        chosen(&[]),
        ("20.2.0".to_owned(), "your choice in ~/.nvm".to_owned(), 0)
    );
    assert_eq!(
        chosen(&[("node", "18")]),
        ("18.1.0".to_owned(), "a pin".to_owned(), 0)
    );
    // HOSTILE: a pin is compared with what is there, and is never a path.
    for evil in ["../../../../.ssh", "99", "$(id)"] {
        assert_eq!(
            chosen(&[("node", evil)]),
            ("20.2.0".to_owned(), "your choice in ~/.nvm".to_owned(), 1)
        );
    }
}

#[test]
fn what_cannot_be_shown_is_not_proposed() {
    // In the folder that a run works on.
    let place = Place::empty();
    place.program(".bun/bin/bun");
    let variables = place.variables.clone();
    let around = Surroundings::of(variables, PathBuf::from("/"), Some(&place.home()));
    assert_eq!(found(&around, &[]), []);
    // Links: a version is none, and where a directory is one, what it leads to is mounted.
    let place = Place::empty();
    place.program("elsewhere/3.12.0/bin/python3");
    fs::create_dir_all(place.home().join(".pyenv")).unwrap();
    symlink(
        place.home().join("elsewhere"),
        place.home().join(".pyenv/versions"),
    )
    .unwrap();
    let found = place.find(&[]);
    assert_eq!(
        found[0].mounts[0].host,
        place.home().join("elsewhere/3.12.0")
    );
    assert_eq!(
        found[0].mounts[0].inside,
        place.home().join(".pyenv/versions/3.12.0")
    );
    // A virtual environment stands on another version.
    let place = Place::empty();
    place.program(".pyenv/versions/mine/bin/python3");
    place.file(".pyenv/versions/mine/pyvenv.cfg", "");
    assert_eq!(place.find(&[]), []);
}

#[test]
fn a_policy_grants_a_toolchain_wholly_partly_or_not() {
    let place = Place::empty();
    place.program(".rustup/toolchains/x/bin/cargo");
    place.program(".cargo/bin/cargo");
    let rustup = &place.find(&[])[0];
    let mut policy = Effective::default();
    let mount = |path: &str| Mount {
        host: place.home().join(path),
        inside: place.home().join(path),
        writable: false,
        from: Origin::default(),
    };
    assert_eq!(rustup.granted(&policy), Granted::No);
    policy.files.mounts.push(mount(".rustup"));
    assert_eq!(rustup.granted(&policy), Granted::Partly);
    policy.files.mounts.push(mount(".cargo/bin"));
    assert_eq!(rustup.granted(&policy), Granted::NotOnPath);
    let bin = place.home().join(".cargo/bin").display().to_string();
    policy.environment.path.push(Line {
        text: bin.clone(),
        from: Origin::default(),
    });
    assert_eq!(rustup.granted(&policy), Granted::Yes);
    // A whole `PATH` of the user's counts more.
    for (path, granted) in [
        ("/usr/bin".to_owned(), Granted::NotOnPath),
        (format!("{bin}:/usr/bin"), Granted::Yes),
    ] {
        let variable = Variable {
            value: Some(path),
            from: Origin::default(),
        };
        policy.env.set.insert("PATH".to_owned(), variable);
        assert_eq!(rustup.granted(&policy), granted);
    }
}

#[test]
fn each_program_comes_from_where_the_user_has_it() {
    let mut place = Place::empty();
    place.program(".nvm/versions/node/v22.3.0/bin/node-of-test");
    place.program(".volta/tools/image/node/20.0.0/bin/node-of-test");
    let need = |program: &str, version: Option<&str>| Need {
        program: program.to_owned(),
        version: version.map(|version| Said {
            value: version.to_owned(),
            why: "a pin".to_owned(),
        }),
        why: String::new(),
    };
    let chosen = |place: &Place, pins: &[(&str, &str)], need: Need| {
        let found = place.find(pins);
        let from = choose(&place.around(), &found, &[need]).remove(0).from;
        match from {
            Chosen::Toolchain(at) => found[at].manager.to_owned(),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(chosen(&place, &[], need("sh", None)), "System");
    assert_eq!(
        chosen(&place, &[], need("no-such-program", None)),
        "Nowhere"
    );
    assert_eq!(chosen(&place, &[], need("node-of-test", None)), "nvm");
    let volta = place.home().join(".volta/tools/image/node/20.0.0/bin");
    place
        .variables
        .insert("PATH".to_owned(), volta.to_str().unwrap().to_owned());
    assert_eq!(chosen(&place, &[], need("node-of-test", None)), "volta");
    let pins = [("node", "22")];
    assert_eq!(
        chosen(&place, &pins, need("node-of-test", Some("22"))),
        "nvm"
    );
}
