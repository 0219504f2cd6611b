//! A YAML document as a tree, in which every node has its position in the file.
//!
//! The depth, the number of nodes and the size of a document are bounded. Anchors, aliases and merges (`<<`) are
//! refused, since a few lines of them can stand for any number of nodes.

use granit_parser::{Event, Marker, Parser, ScalarStyle};

use super::ConfigProblem;

/// The deepest allowed nesting of lists and maps.
const MAX_DEPTH: usize = 64;
/// The largest number of nodes in a document.
const MAX_NODES: usize = 500_000;
const NO_ALIASES: &str =
    "anchors, aliases and merges are not read; write the values out, as `yq 'explode(.)'` does";

/// A position in a file. Lines and columns are counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The number of the line.
    pub line: usize,
    /// The number of the column.
    pub column: usize,
}

/// A YAML value with its position in the file.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    pub(super) place: Position,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A scalar without quotes, which may be a number, a boolean, a null or a text.
    Plain(String),
    /// A scalar that is always a text, such as one in quotes.
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>),
}

impl Position {
    pub(super) fn problem(self, message: impl Into<String>) -> ConfigProblem {
        let Self { line, column } = self;
        // A problem of a node that comes from no file has no position.
        let known = line > 0;
        ConfigProblem {
            line: known.then_some(line),
            column: known.then_some(column),
            message: message.into(),
        }
    }
}

impl From<Marker> for Position {
    fn from(mark: Marker) -> Self {
        Self {
            line: mark.line().max(1),
            column: mark.col() + 1,
        }
    }
}

impl YamlNode {
    /// Returns the text of a scalar; `None` for a list or a map.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Plain(text) | Value::Text(text) => Some(text),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Returns true if the node is a null.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if is_null(text))
    }

    /// Converts the node to JSON; scalars without quotes become numbers, booleans or nulls where
    /// they can.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Plain(text) => plain_to_json(text),
            Value::Text(text) => text.as_str().into(),
            Value::List(list) => list.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                let name = |key: &Self| key.scalar().unwrap_or_default().to_owned();
                let entry = |(key, value): &(Self, Self)| (name(key), value.to_json());
                serde_json::Value::Object(entries.iter().map(entry).collect())
            }
        }
    }
}

/// Returns the boolean that a plain scalar stands for in both YAML 1.1 and YAML 1.2.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Returns true if a plain scalar is a text, rather than a null, a boolean or a number.
pub(super) fn is_text(text: &str) -> bool {
    plain_to_json(text).is_string()
}

fn plain_to_json(text: &str) -> serde_json::Value {
    if is_null(text) {
        return serde_json::Value::Null;
    }
    if let Some(truth) = truth(text) {
        return truth.into();
    }
    let number = text.parse::<f64>().ok().filter(|_| looks_numeric(text));
    number
        .and_then(serde_json::Number::from_f64)
        .map_or_else(|| text.into(), Into::into)
}

fn looks_numeric(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+', '.']);
    digits.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses a text that has at most one YAML document; returns `None` if it has none.
///
/// # Errors
/// Returns an error if the text is not YAML, has several documents, or exceeds the bounds on its
/// size.
pub(super) fn parse(text: &str) -> Result<Option<YamlNode>, ConfigProblem> {
    let mut builder = NodeBuilder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let message = format!("error loading config file: {}", error.info());
            Position::from(*error.marker()).problem(message)
        })?;
        builder.take(event, span.start.into())?;
    }
    Ok(builder.root)
}

#[derive(Default)]
struct NodeBuilder {
    root: Option<YamlNode>,
    open: Vec<Open>,
    nodes: usize,
}

/// A list or a map whose end the parser has not reached yet.
struct Open {
    node: YamlNode,
    /// The key of a map whose value the parser reads next.
    key: Option<YamlNode>,
}

impl NodeBuilder {
    fn take(&mut self, event: Event<'_>, place: Position) -> Result<(), ConfigProblem> {
        let (value, anchor) = match event {
            Event::Scalar(text, ScalarStyle::Plain, anchor, _) => {
                (Value::Plain(text.into_owned()), anchor)
            }
            Event::Scalar(text, _, anchor, _) => (Value::Text(text.into_owned()), anchor),
            Event::SequenceStart(_, anchor, _) => (Value::List(Vec::new()), anchor),
            Event::MappingStart(_, anchor, _) => (Value::Map(Vec::new()), anchor),
            Event::Alias(_) => return Err(place.problem(NO_ALIASES)),
            Event::SequenceEnd | Event::MappingEnd => {
                return self.open.pop().map_or(Ok(()), |open| self.put(open.node));
            }
            _ => return Ok(()),
        };
        if anchor > 0 {
            return Err(place.problem(NO_ALIASES));
        }
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(place.problem(format!("more than {MAX_NODES} values")));
        }
        let node = YamlNode { place, value };
        if node.scalar().is_some() {
            return self.put(node);
        }
        if self.open.len() == MAX_DEPTH {
            return Err(place.problem(format!("nested more than {MAX_DEPTH} deep")));
        }
        self.open.push(Open { node, key: None });
        Ok(())
    }

    /// Adds a finished node to the list or map around it.
    fn put(&mut self, node: YamlNode) -> Result<(), ConfigProblem> {
        let Some(open) = self.open.last_mut() else {
            if self.root.is_some() {
                return Err(node.place.problem("a second document; expected one a file"));
            }
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (Value::List(list), _) => list.push(node),
            (Value::Map(_), None) => open.key = Some(node),
            (Value::Map(map), Some(key)) => map.push((key, node)),
            (Value::Plain(_) | Value::Text(_), _) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        parse(text)
            .unwrap()
            .map_or_else(String::new, |node| node.to_json().to_string())
    }

    #[test]
    fn scalars_mean_what_yaml_says() {
        let read = json("[a, 'b', 1, 0.25, true, ~, '1', -3, 1.2.3, \"true\"]");
        assert_eq!(
            read,
            r#"["a","b",1.0,0.25,true,null,"1",-3.0,"1.2.3","true"]"#
        );
        assert_eq!(json("# nothing\n"), "");
    }

    #[test]
    fn places_are_lines_and_columns_from_1() {
        let Value::Map(map) = parse("a: 1\nbé: 2\n").unwrap().unwrap().value else {
            panic!()
        };
        let places: Vec<_> = map
            .iter()
            .map(|(k, v)| (k.place.line, v.place.column))
            .collect();
        assert_eq!(places, [(1, 4), (2, 5)]);
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = "[".repeat(100_000);
        for text in [
            deep.as_str(),
            "a: &b 1\nc: 2",
            "base: &b {unit: day}\nit: {<<: *b}",
            "a: *nobody",
            "a: b: c",
            "---\na: 1\n---\nb: 2\n",
            "\0",
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.line.is_some(), "{problem}");
        }
    }
}
