//! The tables of a configuration while they are read: each field is taken by its name, with the form that its value
//! must have.
//!
//! A mistake is noted with its place, and the field then counts as not set, so that one reading finds all mistakes of a
//! file. A table that is dropped reports the fields of the file that no reader has asked for.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::{self, Display};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use earrrl::Cost;
use earrrl::internal::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::files::{path_of, text_of};
use super::problem::{ConfigError, LONGEST_SHOWN, shown, unknown_field};

/// The largest number of mistakes that one reading of a file keeps.
const MAX_MISTAKES: usize = 1000;

/// One reading of a file, with the mistakes that it has found so far.
#[derive(Default)]
pub(super) struct Reading {
    mistakes: RefCell<Vec<(Range<usize>, String)>>,
    /// True if only the rules and what they depend on are read. The files of secrets and certificates are then left
    /// alone, since they need not exist on this machine.
    pub(super) of_rules_alone: bool,
    /// The fields of tables that the file does not have.
    none: DeTable<'static>,
}

/// A table of the file. Reading an absent table gives the defaults of its fields.
pub(super) struct Table<'t> {
    /// The name in the table's header, such as `server.tls`; empty for the top level.
    name: String,
    span: Range<usize>,
    fields: &'t DeTable<'t>,
    /// The fields that options of the command line set, which replace those of the file.
    options: &'t DeTable<'t>,
    /// The names of the fields that readers have asked for.
    known: RefCell<Vec<&'static str>>,
    pub(super) reading: &'t Reading,
}

/// A secret text, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The value of a field, with its name and place.
#[derive(Clone, Copy)]
pub(super) struct Field<'t> {
    name: &'t str,
    value: &'t Spanned<DeValue<'t>>,
    reading: &'t Reading,
}

impl Reading {
    /// Begins the reading of a whole file, or of the rules alone.
    pub(super) fn new(of_rules_alone: bool) -> Self {
        Self {
            of_rules_alone,
            ..Self::default()
        }
    }

    /// Notes a mistake at a place in the file, once: the levels of a rule share its fields.
    pub(super) fn note(&self, place: Range<usize>, text: impl Display) {
        let mut mistakes = self.mistakes.borrow_mut();
        let mistake = (place, text.to_string());
        if mistakes.len() < MAX_MISTAKES && !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
    }

    /// Returns what was read, unless there are mistakes.
    ///
    /// # Errors
    /// Returns all mistakes, in the order of their places.
    pub(super) fn finish<T>(self, read: T, name: &str, text: &str) -> Result<T, ConfigError> {
        let mistakes = self.mistakes.into_inner();
        if mistakes.is_empty() {
            return Ok(read);
        }
        Err(ConfigError::new(name, text, mistakes))
    }
}

/// Returns what a reader makes of a table without fields: the defaults.
pub(super) fn defaults<T>(read: impl FnOnce(&Table<'_>) -> T) -> T {
    let reading = Reading::default();
    read(&Table::whole(&reading.none, &reading.none, &reading))
}

impl<'t> Table<'t> {
    /// Returns the top level of a file, with the fields that options set.
    pub(super) fn whole(
        fields: &'t DeTable<'t>,
        options: &'t DeTable<'t>,
        reading: &'t Reading,
    ) -> Self {
        Self {
            name: String::new(),
            span: 0..0,
            fields,
            options,
            known: RefCell::default(),
            reading,
        }
    }

    /// Returns a table below this one, at a place in the file.
    fn inner(&self, name: &str, span: Range<usize>, fields: &'t DeTable<'t>) -> Self {
        let mut table = Self::whole(fields, &self.reading.none, self.reading);
        table.name = self.path(name);
        table.span = span;
        table
    }

    /// Returns a field; `None` if it is not set.
    pub(super) fn field(&self, name: &'static str) -> Option<Field<'t>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
        let value = self.options.get(name).or_else(|| self.fields.get(name))?;
        let reading = self.reading;
        Some(Field {
            name,
            value,
            reading,
        })
    }

    /// Returns a field; notes a mistake if it is not set.
    pub(super) fn required(&self, name: &'static str) -> Option<Field<'t>> {
        let field = self.field(name);
        if field.is_none() {
            self.mistake(format!("missing field `{name}`"));
        }
        field
    }

    /// Returns true if a field is set.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.field(name).is_some()
    }

    /// Notes a mistake in the table as a whole.
    pub(super) fn mistake(&self, text: impl Display) {
        self.reading.note(self.span.clone(), text);
    }

    /// Reports those of the fields that are set, if the condition under which they mean something does not hold.
    pub(super) fn only_if(&self, holds: bool, condition: &str, names: &[&'static str]) {
        for field in names.iter().filter_map(|name| self.field(name)) {
            if !holds {
                field.mistake(format!("only with {condition}"));
            }
        }
    }

    /// Returns true if a field is set to true.
    pub(super) fn is_on(&self, name: &'static str) -> bool {
        self.field(name).and_then(Field::flag) == Some(true)
    }

    /// Returns the whole number in a field.
    pub(super) fn number(&self, name: &'static str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let field = self.field(name)?;
        let DeValue::Integer(number) = field.value.get_ref() else {
            return field.expected("a whole number");
        };
        let value = u64::from_str_radix(number.as_str(), number.radix()).ok();
        let value = value.filter(|value| bounds.contains(value));
        value.or_else(|| {
            let (least, most) = bounds.into_inner();
            field.refuse(format!("{number} is not from {least} to {most}"))
        })
    }

    /// Returns the duration in a field.
    pub(super) fn duration(
        &self,
        name: &'static str,
        want: &str,
        is_valid: impl FnOnce(&Duration) -> bool,
    ) -> Option<Duration> {
        let parse = |text: &str| earrrl::internal::parse_duration(text).ok().filter(is_valid);
        self.field(name)?.parsed(want, parse)
    }

    /// Returns the number of seconds in a field that has a duration of whole seconds.
    pub(super) fn seconds(&self, name: &'static str, bounds: RangeInclusive<u32>) -> Option<u32> {
        let whole = |duration: &Duration| {
            let secs = u32::try_from(duration.as_secs());
            duration.subsec_nanos() == 0 && secs.is_ok_and(|secs| bounds.contains(&secs))
        };
        let ends = format!("from {}s to {}s", bounds.start(), bounds.end());
        let want = format!("whole seconds {ends}, as \"30s\" or \"5m\"");
        Some(self.duration(name, &want, whole)?.as_secs() as u32)
    }

    /// Returns the choice that a field names.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        self.field(name)?.choice(choices)
    }

    /// Returns the text in a field.
    pub(super) fn text(&self, name: &'static str) -> Option<&'t str> {
        self.field(name)?.text()
    }

    /// Returns the values of a list; none if the field is not set.
    pub(super) fn items(&self, name: &'static str) -> Vec<Field<'t>> {
        self.field(name).and_then(Field::items).unwrap_or_default()
    }

    /// Returns a secret with the field that it comes from: its text is in one field, or in the file that another field
    /// names. No message contains the text.
    pub(super) fn secret(
        &self,
        name: &'static str,
        name_of_file: &'static str,
    ) -> Option<(Field<'t>, String)> {
        match (self.field(name), self.field(name_of_file)) {
            (None, None) => None,
            _ if self.reading.of_rules_alone => None,
            (Some(field), None) => match field.value.get_ref() {
                DeValue::String(text) => Some((field, text.clone().into_owned())),
                _ => field.refuse("expected a string, got a value of another type"),
            },
            (None, Some(file)) => Some((file, file.text_of_file()?.trim_end().to_owned())),
            (Some(_), Some(file)) => file.refuse(format!("{name} is set already; want one")),
        }
    }

    /// Returns the table in a field, or one without fields.
    pub(super) fn table(&self, name: &'static str) -> Table<'t> {
        let found = self.fields.get(name).and_then(|value| {
            let reading = self.reading;
            let field = Field {
                name,
                value,
                reading,
            };
            match value.get_ref() {
                DeValue::Table(fields) => Some((value.span(), fields)),
                DeValue::Array(list) if list.iter().any(|item| item.get_ref().is_table()) => {
                    let path = self.path(name);
                    let want = format!("{path}: expected [{path}], in one bracket each");
                    field.note(format!("{want}: there is one of it"));
                    None
                }
                _ => field.expected("a table"),
            }
        });
        // Marks the field as one that is known.
        self.has(name);
        let (span, fields) = found.unwrap_or((0..0, &self.reading.none));
        let mut table = self.inner(name, span, fields);
        if let Some(options) = self
            .options
            .get(name)
            .and_then(|value| value.get_ref().as_table())
        {
            table.options = options;
        }
        table
    }

    /// Returns the tables in a field, each of which has a header in two brackets.
    pub(super) fn tables(&self, name: &'static str) -> Vec<Table<'t>> {
        let Some(field) = self.field(name) else {
            return Vec::new();
        };
        let Some(list) = field.value.get_ref().as_array() else {
            let path = self.path(name);
            let want = format!("{path}: expected [[{path}]], in two brackets each");
            field.note(format!("{want}: there may be several"));
            return Vec::new();
        };
        let table = |value| {
            let item = Field { value, ..field };
            let Some(fields) = item.value.get_ref().as_table() else {
                return item.expected("a table");
            };
            Some(self.inner(name, item.span(), fields))
        };
        list.iter().filter_map(table).collect()
    }

    fn path(&self, name: &str) -> String {
        let separator = if self.name.is_empty() { "" } else { "." };
        format!("{}{separator}{name}", self.name)
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        let known = self.known.borrow();
        for name in self.fields.keys() {
            let text: &str = name.get_ref();
            if !known.contains(&text) {
                self.reading.note(name.span(), unknown_field(text, &known));
            }
        }
    }
}

/// # Mistakes
impl<'t> Field<'t> {
    /// Returns the place of the value in the file.
    pub(super) fn span(self) -> Range<usize> {
        self.value.span()
    }

    /// Notes a mistake, with a text that names the field itself.
    pub(super) fn note(self, text: impl Display) {
        self.reading.note(self.span(), text);
    }

    /// Notes a mistake in the field.
    pub(super) fn mistake(self, why: impl Display) {
        self.mistake_at(self.span(), why);
    }

    /// Notes a mistake in the field, at a place of its own.
    pub(super) fn mistake_at(self, place: Range<usize>, why: impl Display) {
        self.reading.note(place, format!("{}: {why}", self.name));
    }

    /// Notes a mistake and returns no value.
    pub(super) fn refuse<T>(self, why: impl Display) -> Option<T> {
        self.mistake(why);
        None
    }

    /// Notes that the value is none of those that are expected, and returns no value.
    pub(super) fn expected<T>(self, want: impl Display) -> Option<T> {
        let got: Cow<'_, str> = match self.value.get_ref() {
            DeValue::String(text) => {
                return self.refuse(format!("`{}`: expected {want}", shown(text)));
            }
            DeValue::Integer(number) => number.to_string().into(),
            DeValue::Float(number) => number.to_string().into(),
            DeValue::Boolean(flag) => flag.to_string().into(),
            DeValue::Datetime(_) => "a date".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        };
        let got: String = got.chars().take(LONGEST_SHOWN).collect();
        self.refuse(format!("expected {want}, got {got}"))
    }
}

/// # Values
impl<'t> Field<'t> {
    /// Returns what `parse` makes of the text in the field.
    pub(super) fn parsed<T>(
        self,
        want: impl Display,
        parse: impl FnOnce(&'t str) -> Option<T>,
    ) -> Option<T> {
        let text = self.value.get_ref().as_str();
        text.and_then(parse).or_else(|| self.expected(want))
    }

    /// Returns what `parse` makes of the text in the field, or notes its error.
    pub(super) fn checked<T, E: Display>(
        self,
        parse: impl FnOnce(&'t str) -> Result<T, E>,
    ) -> Option<T> {
        parse(self.text()?).map_or_else(|why| self.refuse(why), Some)
    }

    pub(super) fn text(self) -> Option<&'t str> {
        let number = self.value.get_ref().as_integer();
        let form = number.map(|number| format!(", as \"{number}\""));
        self.parsed(format!("a string{}", form.unwrap_or_default()), Some)
    }

    pub(super) fn flag(self) -> Option<bool> {
        let flag = self.value.get_ref().as_bool();
        flag.or_else(|| self.expected("true or false"))
    }

    /// Returns the decimal digits of a number.
    pub(super) fn digits(self) -> Option<String> {
        match self.value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
            DeValue::Integer(number) => {
                let value = u64::from_str_radix(number.as_str(), number.radix());
                value.map_or_else(
                    |_| self.expected("a number from 0 to 1e18"),
                    |value| Some(value.to_string()),
                )
            }
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => self.expected("a number from 0"),
        }
    }

    /// Returns the cost of a request: a number with at most nine decimals.
    pub(super) fn cost(self) -> Option<Cost> {
        let cost = self.digits()?.parse::<Cost>();
        cost.map_or_else(|why| self.refuse(why), Some)
    }

    /// Returns the choice that the field names.
    pub(super) fn choice<T: Copy>(self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        let names = choices.iter().map(|(name, _)| *name);
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let known = names.clone().collect::<Vec<_>>().join(", ");
        let meant = nearest(text, names).map(|name| format!("; did you mean `{name}`?"));
        let meant = meant.unwrap_or_default();
        self.refuse(format!("`{}` is none of {known}{meant}", shown(text)))
    }

    /// Returns the path of a file or folder, which may begin with `$CREDENTIALS_DIRECTORY/`.
    pub(super) fn path(self) -> Option<PathBuf> {
        let text = self.parsed("the path of a file", |text| {
            Some(text).filter(|text| !text.is_empty())
        })?;
        path_of(text).map_or_else(|why| self.refuse(why), Some)
    }

    /// Returns the text of the file that the field names.
    pub(super) fn text_of_file(self) -> Option<String> {
        self.checked(text_of)
    }

    /// Returns the values of a list.
    pub(super) fn items(self) -> Option<Vec<Self>> {
        let Some(list) = self.value.get_ref().as_array() else {
            return self.expected("a list");
        };
        Some(list.iter().map(|value| Self { value, ..self }).collect())
    }

    /// Returns the texts of a field that has one text, or a list of at most so many.
    pub(super) fn texts(self, most: usize) -> Option<Vec<(Self, &'t str)>> {
        let items = match self.value.get_ref() {
            DeValue::String(_) => vec![self],
            DeValue::Array(list) => list.iter().map(|value| Self { value, ..self }).collect(),
            _ => return self.expected("a string or a list of strings"),
        };
        if items.is_empty() || items.len() > most {
            self.mistake(format!("{} values; expected 1 to {most}", items.len()));
        }
        let text = |item: Self| Some((item, item.text()?));
        Some(items.into_iter().filter_map(text).collect())
    }

    /// Returns the entries of a table whose names are not fixed, each with its name.
    pub(super) fn entries(self) -> Vec<(&'t Spanned<Cow<'t, str>>, Self)> {
        let value = self.value.get_ref();
        let Some(table) = value.as_table() else {
            let form = value.as_str().map(|text| {
                let attribute = match text.as_bytes().first() {
                    Some(b'/') => "path",
                    Some(b'0'..=b'9') => "client",
                    _ => "user",
                };
                format!(", as {{ {attribute} = \"{}\" }}", shown(text))
            });
            let want = format!("a table{}", form.unwrap_or_default());
            return self.expected(want).unwrap_or_default();
        };
        let entry = |(name, value)| (name, Self { value, ..self });
        table.iter().map(entry).collect()
    }

    /// Returns true if the field has this name.
    pub(super) fn is_named(self, name: &str) -> bool {
        self.name == name
    }

    /// Returns true if the value is a table.
    pub(super) fn is_table(self) -> bool {
        self.value.get_ref().is_table()
    }

    /// Returns true if the value is a text.
    pub(super) fn is_text(self) -> bool {
        self.value.get_ref().is_str()
    }
}
