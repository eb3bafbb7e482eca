//! Checks that modules have no cycles and that types have a readable size, in the sources as rustfmt formats them.
//!
//! | what | rule |
//! |---|---|
//! | crates | use the crates that ARCHITECTURE.md lists, all of them and no others |
//! | top-level modules of a crate | the same, and no cycle among them |
//! | types | at most 40 methods; more than 30 methods or 15 fields only with a reason |
//!
//! `UPDATE_ARCHITECTURE=1 cargo test -p cofferdam-tests --test structure` writes the tables again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cofferdam_tests::markdown::rows;

const HEADING: &str = "## Dependencies between crates and modules";

/// Types over a limit, each with its reason: a crate, a type, the reason.
const LARGE_TYPES: &[(&str, &str, &str)] = &[
    ("cofferdam", "RawServer", "one field for each key of `[servers.NAME]`"),
    ("cofferdam", "Description", "one field for each key that `sessions --json` prints"),
    ("cofferdam-servers", "ServerSet", "the whole interface between a link and its servers"),
    ("cofferdam-audit", "Record", "one field for each key that a record of the audit may have"),
];

const MOST_METHODS: usize = 40;
const MANY_METHODS: usize = 30;
const MANY_FIELDS: usize = 15;

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// One crate of the product.
struct Crate {
    name: String,
    /// Its Rust files below `src`, with their paths from there; test code is left out.
    files: BTreeMap<PathBuf, String>,
    uses: BTreeSet<String>,
}

#[test]
fn crates_and_modules_use_what_the_architecture_says() {
    let path = root().join("ARCHITECTURE.md");
    let found = tables(&crates());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("UPDATE_ARCHITECTURE").is_some() {
        std::fs::write(&path, with_section(&text, &found)).expect("the workspace is writable");
        return;
    }
    let section = section(&text).unwrap_or_default();
    let (shown, expected) = (labelled_rows(section), labelled_rows(&found));
    let line = |sign: char| move |row: &String| format!("  {sign} {row}\n");
    let changes: String = shown.difference(&expected).map(line('-')).collect();
    let changes = changes + &expected.difference(&shown).map(line('+')).collect::<String>();
    assert!(
        changes.is_empty(),
        "the section `{HEADING}` of ARCHITECTURE.md differs from the imports; if the imports are intended, change its lines:\n{changes}"
    );
}

#[test]
fn no_modules_of_a_crate_form_a_cycle() {
    let mut found = BTreeSet::new();
    for package in crates() {
        let uses = package.modules();
        let reached = |module: &str| reachable(&uses, module);
        for module in uses.keys() {
            let cycle: BTreeSet<String> =
                reached(module).into_iter().filter(|other| reached(other).contains(module)).collect();
            if cycle.len() > 1 {
                found.insert((package.name.clone(), cycle));
            }
        }
    }
    assert!(found.is_empty(), "modules that use each other in a circle: {found:?}");
}

#[test]
fn types_have_a_readable_size() {
    let mut unexplained = Vec::new();
    let mut large = BTreeSet::new();
    for package in crates() {
        for ((file, name), (methods, fields)) in package.types() {
            if methods <= MANY_METHODS && fields <= MANY_FIELDS {
                continue;
            }
            let key = (package.name.as_str(), name.as_str());
            let has_reason = LARGE_TYPES.iter().any(|(owner, known, _)| (*owner, *known) == key);
            if !has_reason || methods > MOST_METHODS {
                let file = file.display();
                unexplained.push(format!("{key:?} in {file}: {methods} methods, {fields} fields"));
            }
            large.insert((package.name.clone(), name));
        }
    }
    assert!(
        unexplained.is_empty(),
        "over {MOST_METHODS} methods, or over {MANY_METHODS} methods or {MANY_FIELDS} fields without a reason in \
         LARGE_TYPES:\n{}",
        unexplained.join("\n")
    );
    let listed = LARGE_TYPES.iter().map(|(owner, name, _)| (*owner, *name));
    let small: Vec<_> =
        listed.filter(|(owner, name)| !large.contains(&((*owner).to_owned(), (*name).to_owned()))).collect();
    assert!(small.is_empty(), "no longer large; delete from LARGE_TYPES: {small:?}");
}

impl Crate {
    /// The top-level modules, and which others each names.
    fn modules(&self) -> Dependencies {
        let modules: BTreeSet<String> = self.files.keys().filter_map(|path| module_of(path)).collect();
        let mut uses: Dependencies = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
        for (path, text) in &self.files {
            let Some(module) = module_of(path) else { continue };
            let supers = "super::".repeat(depth_of(path));
            let named = ["crate::", &supers].into_iter().flat_map(|prefix| first_names(text, prefix));
            let others = named.filter(|name| *name != module && modules.contains(name));
            uses.entry(module.clone()).or_default().extend(others.collect::<Vec<_>>());
        }
        uses
    }

    /// Types by file and name, with the number of their methods and fields.
    fn types(&self) -> BTreeMap<(&Path, String), (usize, usize)> {
        let mut types = BTreeMap::new();
        for (path, text) in &self.files {
            let mut current: Option<(&Path, String)> = None;
            for line in text.lines() {
                if let Some(name) = declared(line) {
                    current = line.ends_with('{').then(|| (path.as_path(), name.clone()));
                    types.entry((path.as_path(), name)).or_insert((0, 0));
                } else if line == "}" {
                    current = None;
                } else if let Some(key) = &current
                    && is_field(line)
                {
                    types.entry(key.clone()).or_insert((0, 0)).1 += 1;
                }
            }
        }
        for (path, text) in &self.files {
            let mut current: Option<(&Path, String)> = None;
            for line in text.lines() {
                if let Some(name) = implemented(line) {
                    // Of several types with that name, the one whose file is nearest.
                    let nearest = types.keys().filter(|(_, other)| *other == name);
                    current = nearest.max_by_key(|(file, _)| shared_components(file, path)).cloned();
                } else if line == "}" {
                    current = None;
                } else if let Some(key) = &current
                    && is_method(line)
                {
                    types.entry(key.clone()).or_insert((0, 0)).0 += 1;
                }
            }
        }
        types
    }
}

/// The crates of the workspace, except the test crates.
fn crates() -> Vec<Crate> {
    let manifest = |directory: &Path| -> toml::Table {
        let text = std::fs::read_to_string(directory.join("Cargo.toml")).expect("a crate has a manifest");
        text.parse().expect("a manifest is TOML")
    };
    let members = manifest(&root())["workspace"]["members"].as_array().expect("a list").clone();
    let directories: Vec<PathBuf> = members
        .iter()
        .filter_map(|member| member.as_str().filter(|path| !path.starts_with("tests")))
        .map(|path| root().join(path))
        .collect();
    let name = |directory: &PathBuf| {
        manifest(directory)["package"]["name"].as_str().expect("a package has a name").to_owned()
    };
    let names: BTreeSet<String> = directories.iter().map(name).collect();
    let load = |directory: &PathBuf| {
        let mut files = BTreeMap::new();
        collect(&directory.join("src"), Path::new(""), &mut files);
        let dependencies =
            manifest(directory).get("dependencies").and_then(|table| table.as_table().cloned());
        let uses =
            dependencies.unwrap_or_default().keys().filter(|key| names.contains(*key)).cloned().collect();
        Crate { name: name(directory), files, uses }
    };
    directories.iter().map(load).collect()
}

/// Reads the files of a directory, without code that is compiled for tests only.
fn collect(directory: &Path, below: &Path, files: &mut BTreeMap<PathBuf, String>) {
    let mut entries: Vec<_> = std::fs::read_dir(directory).expect("sources are readable").flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut hidden = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry.path().is_file()) {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]") {
            let module = pair[1].strip_suffix(';').and_then(|line| line.rsplit(' ').next());
            hidden.extend(module.map(str::to_owned));
        }
    }
    for entry in entries {
        let (path, place) = (entry.path(), below.join(entry.file_name()));
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // A directory `tests` beside its parent module's file is declared in the directory above.
        if hidden.contains(&stem) || stem == "tests" {
            continue;
        }
        if path.is_dir() {
            collect(&path, &place, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("sources are text");
            let product = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = product.lines().map(|line| line.split("//").next().unwrap_or_default());
            files.insert(place, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The top-level module that a file belongs to; none for the root of the crate.
fn module_of(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs").to_owned();
    (!["lib", "main", "bin"].contains(&name.as_str())).then_some(name)
}

/// How many modules a file's own module is below the root of the crate.
fn depth_of(path: &Path) -> usize {
    path.components().count() - usize::from(path.ends_with("mod.rs"))
}

/// The names that follow a prefix: a single name, or those of a group in braces.
fn first_names(text: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (place, _) in text.match_indices(prefix) {
        // Not the end of a longer path, as in `super::super::x` or `other_crate::x`.
        let before = text[..place].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let rest = &text[place + prefix.len()..];
        match rest.strip_prefix('{') {
            None => names.extend(name_at(rest)),
            Some(group) => {
                let mut depth = 0_usize;
                let mut at_start = true;
                for (index, character) in group.char_indices() {
                    match character {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => at_start = true,
                        _ if at_start && !character.is_whitespace() => {
                            names.extend(name_at(&group[index..]));
                            at_start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

fn name_at(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    Some(text[..end.unwrap_or(text.len())].to_owned()).filter(|name| !name.is_empty() && name != "super")
}

fn reachable(uses: &Dependencies, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        for other in uses.get(&module).into_iter().flatten() {
            if reached.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    reached
}

/// The name of a struct or enum whose declaration begins in this line, at the left margin.
fn declared(line: &str) -> Option<String> {
    let visible = without_visibility(line);
    let rest = visible.strip_prefix("struct ").or_else(|| visible.strip_prefix("enum "))?;
    name_at(rest)
}

/// The type of an `impl` block without a trait that begins in this line.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    if rest.contains(" for ") {
        return None;
    }
    let rest = if let Some(generics) = rest.strip_prefix('<') {
        let mut depth = 1_usize;
        let end = generics.char_indices().find(|(_, character)| {
            match character {
                '<' => depth += 1,
                '>' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        &generics[end.0 + 1..]
    } else {
        rest
    };
    name_at(rest.trim_start())
}

fn is_field(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ") else { return false };
    let rest = without_visibility(rest);
    let name = name_at(rest).unwrap_or_default();
    !name.is_empty()
        && name.starts_with(|first: char| first.is_lowercase() || first == '_')
        && rest[name.len()..].starts_with(": ")
}

fn is_method(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ") else { return false };
    let mut rest = without_visibility(rest);
    for word in ["const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.starts_with("fn ")
}

fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = if rest.starts_with('(') { rest.split_once(')').map_or(rest, |(_, rest)| rest) } else { rest };
    rest.trim_start()
}

fn shared_components(package: &Path, other: &Path) -> usize {
    package.components().zip(other.components()).take_while(|(package, other)| package == other).count()
}

/// The tables in the form of the document.
fn tables(crates: &[Crate]) -> String {
    let row = |(name, uses): (&String, &BTreeSet<String>)| {
        let uses: Vec<String> = uses.iter().map(|name| format!("`{name}`")).collect();
        format!("| `{name}` | {} |\n", if uses.is_empty() { "nothing".to_owned() } else { uses.join(", ") })
    };
    let mut text = String::from("| crate | may use |\n|---|---|\n");
    text.extend(crates.iter().map(|package| row((&package.name, &package.uses))));
    for package in crates {
        let modules = package.modules();
        if modules.len() > 1 {
            text.push_str(&format!("\n| module of `{}` | may use |\n|---|---|\n", package.name));
            text.extend(modules.iter().map(row));
        }
    }
    text
}

/// The lines of all tables, each with the heading of its table's first column.
fn labelled_rows(text: &str) -> BTreeSet<String> {
    let mut heading = String::new();
    let mut lines = BTreeSet::new();
    for row in rows(text) {
        if row.last().is_some_and(|last| last == "may use") {
            heading.clone_from(&row[0]);
        } else {
            lines.insert(format!("({heading}) | {} |", row.join(" | ")));
        }
    }
    lines
}

fn section(document: &str) -> Option<&str> {
    let (_, rest) = document.split_once(HEADING)?;
    Some(rest.split("\n## ").next().unwrap_or(rest))
}

fn with_section(document: &str, tables: &str) -> String {
    match section(document) {
        Some(old) => {
            // The text before the tables is kept.
            let prose = old.split("\n|").next().unwrap_or_default().trim();
            let prose = if prose.is_empty() { String::new() } else { format!("{prose}\n\n") };
            document.replacen(old, &format!("\n\n{prose}{tables}"), 1)
        }
        None if document.is_empty() => format!("# Architecture\n\n{HEADING}\n\n{tables}"),
        None => format!("{}\n\n{HEADING}\n\n{tables}", document.trim_end()),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}
