//! Lock files and manifests: which command brings what they name, and which files it depends on.

use super::{Files, Proposed, Said, Seen, add, is_plain_path, join, split, text};

/// How the packages of one kind of project are brought.
struct Kind {
    /// The file that tells it.
    file: &'static str,
    /// Where one of these is in the same folder, that one tells more.
    but_not_with: &'static [&'static str],
    setup: &'static str,
    /// Other files that the outcome depends on, where they exist.
    also: &'static [&'static str],
    cache: Option<&'static str>,
    preset: Option<&'static str>,
    /// What must be there to run it.
    programs: &'static [&'static str],
}

const PIP: Kind = Kind {
    file: "requirements.txt",
    but_not_with: &["uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock"],
    // Below the home, where every Python of this version finds it without being told, the host's as
    // well as an image's.
    setup: "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user -r requirements.txt",
    also: &["requirements-dev.txt", "constraints.txt"],
    cache: Some("pip"),
    preset: Some("pypi"),
    programs: &["python3"],
};

/// In the order in which their setups run.
const KINDS: &[Kind] = &[
    Kind {
        file: "uv.lock",
        but_not_with: &[],
        setup: "uv sync --frozen",
        also: &["pyproject.toml", ".python-version"],
        cache: Some("uv"),
        preset: Some("pypi"),
        programs: &["uv", "python3"],
    },
    Kind {
        file: "poetry.lock",
        but_not_with: &["uv.lock"],
        setup: "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction --no-root",
        also: &["pyproject.toml"],
        cache: Some("pip"),
        preset: Some("pypi"),
        programs: &["poetry", "python3"],
    },
    Kind {
        file: "pdm.lock",
        but_not_with: &["uv.lock", "poetry.lock"],
        setup: "pdm sync --no-self",
        also: &["pyproject.toml"],
        cache: Some("pip"),
        preset: Some("pypi"),
        programs: &["pdm", "python3"],
    },
    Kind {
        file: "Pipfile.lock",
        but_not_with: &["uv.lock", "poetry.lock", "pdm.lock"],
        setup: "PIPENV_VENV_IN_PROJECT=1 pipenv sync --dev",
        also: &["Pipfile"],
        cache: Some("pip"),
        preset: Some("pypi"),
        programs: &["pipenv", "python3"],
    },
    PIP,
    Kind {
        file: "requirements-dev.txt",
        but_not_with: &["requirements.txt"],
        setup: "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user -r requirements-dev.txt",
        ..PIP
    },
    Kind {
        file: "pyproject.toml",
        but_not_with: &[
            "uv.lock",
            "poetry.lock",
            "pdm.lock",
            "Pipfile.lock",
            "requirements.txt",
            "requirements-dev.txt",
        ],
        setup: "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user -e .",
        also: &["setup.py", "setup.cfg"],
        ..PIP
    },
    Kind {
        file: "pnpm-lock.yaml",
        but_not_with: &[],
        setup: "pnpm install --frozen-lockfile",
        also: &["package.json", "pnpm-workspace.yaml", ".npmrc"],
        cache: Some("pnpm"),
        preset: Some("npm"),
        programs: &["pnpm", "node"],
    },
    Kind {
        file: "yarn.lock",
        but_not_with: &["pnpm-lock.yaml"],
        setup: "yarn install --frozen-lockfile",
        also: &["package.json", ".yarnrc.yml", ".yarnrc"],
        cache: Some("yarn"),
        preset: Some("npm"),
        programs: &["yarn", "node"],
    },
    Kind {
        file: "bun.lock",
        but_not_with: &["pnpm-lock.yaml", "yarn.lock"],
        setup: "bun install --frozen-lockfile",
        also: &["package.json"],
        cache: Some("bun"),
        preset: Some("npm"),
        programs: &["bun"],
    },
    Kind {
        file: "bun.lockb",
        but_not_with: &["bun.lock", "pnpm-lock.yaml", "yarn.lock"],
        setup: "bun install --frozen-lockfile",
        also: &["package.json"],
        cache: Some("bun"),
        preset: Some("npm"),
        programs: &["bun"],
    },
    Kind {
        file: "package-lock.json",
        but_not_with: &["pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"],
        setup: "npm ci",
        also: &["package.json", ".npmrc"],
        cache: Some("npm"),
        preset: Some("npm"),
        programs: &["npm", "node"],
    },
    Kind {
        file: "npm-shrinkwrap.json",
        but_not_with: &["package-lock.json", "pnpm-lock.yaml", "yarn.lock"],
        setup: "npm ci",
        also: &["package.json", ".npmrc"],
        cache: Some("npm"),
        preset: Some("npm"),
        programs: &["npm", "node"],
    },
    Kind {
        file: "deno.lock",
        but_not_with: &["package-lock.json", "pnpm-lock.yaml", "yarn.lock"],
        setup: "deno install --frozen",
        also: &["deno.json", "deno.jsonc", "package.json"],
        cache: None,
        preset: Some("npm"),
        programs: &["deno"],
    },
    Kind {
        file: "package.json",
        but_not_with: &[
            "package-lock.json",
            "npm-shrinkwrap.json",
            "pnpm-lock.yaml",
            "yarn.lock",
            "bun.lock",
            "bun.lockb",
            "deno.lock",
        ],
        setup: "npm install --no-package-lock",
        also: &[".npmrc"],
        cache: Some("npm"),
        preset: Some("npm"),
        programs: &["npm", "node"],
    },
    Kind {
        file: "Cargo.lock",
        but_not_with: &[],
        setup: "cargo fetch --locked",
        also: &["Cargo.toml", "rust-toolchain.toml", "rust-toolchain"],
        cache: Some("cargo"),
        preset: Some("cargo"),
        programs: &["cargo"],
    },
    Kind {
        file: "Cargo.toml",
        but_not_with: &["Cargo.lock"],
        setup: "cargo fetch",
        also: &["rust-toolchain.toml", "rust-toolchain"],
        cache: Some("cargo"),
        preset: Some("cargo"),
        programs: &["cargo"],
    },
    Kind {
        file: "go.sum",
        but_not_with: &[],
        setup: "go mod download",
        also: &["go.mod"],
        cache: Some("go"),
        preset: Some("go"),
        programs: &["go"],
    },
    Kind {
        file: "Gemfile.lock",
        but_not_with: &[],
        setup: "BUNDLE_PATH=vendor/bundle BUNDLE_FROZEN=true bundle install",
        also: &["Gemfile", ".ruby-version"],
        cache: None,
        preset: None,
        programs: &["bundle", "ruby"],
    },
    Kind {
        file: "composer.lock",
        but_not_with: &[],
        setup: "composer install --no-interaction",
        also: &["composer.json"],
        cache: None,
        preset: None,
        programs: &["composer", "php"],
    },
    Kind {
        file: "mix.lock",
        but_not_with: &[],
        setup: "mix local.hex --force --if-missing && mix deps.get --check-locked",
        also: &["mix.exs"],
        cache: None,
        preset: None,
        programs: &["mix"],
    },
    Kind {
        file: "pom.xml",
        but_not_with: &[],
        setup: "mvn -B -q dependency:go-offline",
        also: &[],
        cache: None,
        preset: None,
        programs: &["mvn", "java"],
    },
    Kind {
        file: "gradle.lockfile",
        but_not_with: &[],
        setup: "gradle --no-daemon dependencies",
        also: &[
            "build.gradle",
            "build.gradle.kts",
            "settings.gradle",
            "settings.gradle.kts",
        ],
        cache: None,
        preset: None,
        programs: &["gradle", "java"],
    },
    Kind {
        file: "build.gradle",
        but_not_with: &["gradle.lockfile", "pom.xml"],
        setup: "gradle --no-daemon dependencies",
        also: &["settings.gradle", "gradle.properties"],
        cache: None,
        preset: None,
        programs: &["gradle", "java"],
    },
    Kind {
        file: "build.gradle.kts",
        but_not_with: &["gradle.lockfile", "build.gradle", "pom.xml"],
        setup: "gradle --no-daemon dependencies",
        also: &["settings.gradle.kts", "gradle.properties"],
        cache: None,
        preset: None,
        programs: &["gradle", "java"],
    },
    Kind {
        file: "packages.lock.json",
        but_not_with: &[],
        setup: "dotnet restore --locked-mode",
        also: &[],
        cache: None,
        preset: None,
        programs: &["dotnet"],
    },
    Kind {
        file: "pubspec.lock",
        but_not_with: &[],
        setup: "dart pub get --enforce-lockfile",
        also: &["pubspec.yaml"],
        cache: None,
        preset: None,
        programs: &["dart"],
    },
    Kind {
        file: "Package.resolved",
        but_not_with: &[],
        setup: "swift package resolve --force-resolved-versions",
        also: &["Package.swift"],
        cache: None,
        preset: None,
        programs: &["swift"],
    },
    Kind {
        file: "cabal.project.freeze",
        but_not_with: &[],
        setup: "cabal update && cabal build --only-dependencies all",
        also: &["cabal.project"],
        cache: None,
        preset: None,
        programs: &["cabal", "ghc"],
    },
    Kind {
        file: "stack.yaml.lock",
        but_not_with: &[],
        setup: "stack build --only-dependencies",
        also: &["stack.yaml"],
        cache: None,
        preset: None,
        programs: &["stack"],
    },
    Kind {
        file: "Manifest.toml",
        but_not_with: &[],
        setup: "julia --project=. -e 'using Pkg; Pkg.instantiate()'",
        also: &["Project.toml"],
        cache: None,
        preset: None,
        programs: &["julia"],
    },
    Kind {
        file: "flake.lock",
        but_not_with: &[],
        setup: "nix develop --command true",
        also: &["flake.nix"],
        cache: None,
        preset: None,
        programs: &["nix"],
    },
];

/// What is known and cannot be set up by one command.
const NAMED: &[(&str, &str)] = &[
    (
        "environment.yml",
        "conda: use an image that has the environment",
    ),
    (
        "environment.yaml",
        "conda: use an image that has the environment",
    ),
    ("pixi.lock", "pixi: write `setup = …` yourself"),
    ("conan.lock", "conan: write `setup = …` yourself"),
    ("vcpkg.json", "vcpkg: write `setup = …` yourself"),
    ("renv.lock", "renv: write `setup = …` yourself"),
    ("shell.nix", "nix-shell: write `setup = …` yourself"),
    (
        "flake.nix",
        "a flake without `flake.lock` is another one each day: run `nix flake lock`",
    ),
    (
        "docker-compose.yml",
        "services: a sandbox is one; start them in it, or use a double",
    ),
    (
        "compose.yaml",
        "services: a sandbox is one; start them in it, or use a double",
    ),
    (".envrc", "direnv: it is never run here"),
];

/// Whether a file of this name is one, or something that one depends on.
pub(super) fn is_one(name: &str) -> bool {
    KINDS
        .iter()
        .any(|kind| kind.file == name || kind.also.contains(&name))
        || NAMED.iter().any(|(file, _)| *file == name)
        || matches!(name, "mvnw" | "gradlew")
}

pub(super) fn take(own: &mut Proposed, files: &Files) {
    // What the user of the folder wrote down is what is run; lock files say when to run it again.
    let is_said = !own.setup.is_empty();
    let mut steps = 0;
    for kind in KINDS {
        for path in files.keys() {
            let (folder, name) = split(path);
            if name != kind.file || !applies(kind, files, folder) {
                continue;
            }
            if !folder.is_empty() && !is_plain_path(folder) {
                let instead = "the name of its folder is not plain; write `setup = …` yourself";
                own.leave_out(path, "a lock file", instead);
                continue;
            }
            if steps == super::MAX_STEPS {
                own.leave_out(path, "one more lock file", "write its setup yourself");
                continue;
            }
            steps += 1;
            one(own, files, kind, folder, is_said);
        }
    }
    for path in files.keys() {
        let (folder, name) = split(path);
        let alone = !files.contains_key(&join(folder, "flake.lock")) || name != "flake.nix";
        let known = NAMED.iter().find(|(file, _)| *file == name && alone);
        if let Some((_, instead)) = known.filter(|_| is_plain_path(path)) {
            own.leave_out(path, "it is not set up", instead);
        }
    }
}

fn applies(kind: &Kind, files: &Files, folder: &str) -> bool {
    let has = |name: &str| files.contains_key(&join(folder, name));
    if kind.but_not_with.iter().any(|name| has(name)) {
        return false;
    }
    // Members of a workspace are locked at its top.
    let mut above = folder;
    while !above.is_empty() {
        above = split(above).0;
        let covers = |lock: &&str| files.contains_key(&join(above, lock));
        let locks: &[&str] = match kind.file {
            "Cargo.toml" => &["Cargo.lock", "Cargo.toml"],
            "package.json" => &[
                "package-lock.json",
                "npm-shrinkwrap.json",
                "pnpm-lock.yaml",
                "yarn.lock",
                "bun.lock",
                "bun.lockb",
                "package.json",
            ],
            "pyproject.toml" => &["uv.lock", "poetry.lock", "pdm.lock", "pyproject.toml"],
            "pom.xml" => &["pom.xml"],
            "build.gradle" | "build.gradle.kts" => &[
                "settings.gradle",
                "settings.gradle.kts",
                "gradle.lockfile",
                "build.gradle",
                "build.gradle.kts",
            ],
            _ => &[],
        };
        if locks.iter().any(covers) {
            return false;
        }
    }
    match kind.file {
        // A file of settings for tools is no project.
        "pyproject.toml" => text(files, &join(folder, kind.file))
            .is_some_and(|text| text.lines().any(|line| line.trim() == "[project]")),
        "package.json" => {
            text(files, &join(folder, kind.file)).is_some_and(|text| text.contains("ependencies\""))
        }
        _ => true,
    }
}

fn one(own: &mut Proposed, files: &Files, kind: &Kind, folder: &str, is_said: bool) {
    let place = join(folder, kind.file);
    if !is_said {
        let command = command(kind, files, folder);
        let value = match folder {
            "" => command,
            folder => format!("(cd {folder} && {command})"),
        };
        let why = place.clone();
        own.setup.push(Said { value, why });
        if let Some(directory) = programs_of(kind) {
            let directory = if directory.starts_with('~') {
                directory.to_owned()
            } else {
                join(folder, directory)
            };
            add(
                &mut own.path,
                &directory,
                "programs that the setup installs",
            );
        }
    }
    match (kind.preset, kind.programs.first()) {
        (Some(preset), _) => add(&mut own.network, &format!("preset:{preset}"), &place),
        (None, Some(program)) => {
            let instead = "there is no preset for it: allow the hosts of its index yourself, as \
                           `[environment] network = [\"GET,HEAD index.example\"]`";
            own.leave_out(&place, &format!("the network for `{program}`"), instead);
        }
        (None, None) => {}
    }
    add(&mut own.key, &place, "");
    for also in kind.also {
        let path = join(folder, also);
        if matches!(files.get(&path), Some(Seen::Bytes(_))) {
            add(&mut own.key, &path, "");
        }
    }
    if let Some(cache) = kind.cache {
        add(&mut own.cache, cache, &place);
    }
    for program in kind.programs {
        own.need(program, &place);
    }
}

/// The command of a kind, with what this project has of its own.
fn command(kind: &Kind, files: &Files, folder: &str) -> String {
    let has = |name: &str| files.contains_key(&join(folder, name));
    match kind.file {
        "requirements.txt" if has("requirements-dev.txt") => {
            format!("{} -r requirements-dev.txt", kind.setup)
        }
        "yarn.lock" if is_berry(files, folder) => "yarn install --immutable".to_owned(),
        // Wrappers of the repository pin the version; they run inside only.
        "pom.xml" if has("mvnw") => kind.setup.replacen("mvn", "sh ./mvnw", 1),
        "gradle.lockfile" | "build.gradle" | "build.gradle.kts" if has("gradlew") => {
            kind.setup.replacen("gradle", "sh ./gradlew", 1)
        }
        _ => kind.setup.to_owned(),
    }
}

/// Where the programs are that were installed with the packages, if their client does not start them.
fn programs_of(kind: &Kind) -> Option<&'static str> {
    match kind.file {
        "uv.lock" | "poetry.lock" | "pdm.lock" | "Pipfile.lock" => Some(".venv/bin"),
        "requirements.txt" | "requirements-dev.txt" | "pyproject.toml" => Some("~/.local/bin"),
        _ => None,
    }
}

/// The second kind of yarn has another option for the same.
fn is_berry(files: &Files, folder: &str) -> bool {
    text(files, &join(folder, "yarn.lock")).is_some_and(|text| text.contains("__metadata:"))
}
