//! Reads many files into one stream of requests, and counts every line.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::batch::{Requests, resolve};
use super::clients::ClientNumbers;
use super::doubt::{self, HourWatch, MalformedLines};
use super::find_format::{find_format, first_lines};
use super::input::{self, Input, name_of};
use super::key::{KeyMaker, LogKey};
use super::lines::{LogLines, MAX_LINE};
use super::parsing::{LineParser, Parsing, ReadError};
use super::select::{Costs, Filter};
use crate::envelope::Envelope;
use crate::format::{Field, Format, Hints, Parser, envelope_of};
use crate::line::{Skip, Skips};
use crate::text::plain;
use earrrl::internal::nearest;
use earrrl_tower::Prefixes;

/// The settings of reading: the format, and the key, the cost and the selection of requests.
///
/// ```
/// use earrrl_logs::format::Format;
/// use earrrl_logs::reading::{CostRule, Filter, Selection};
///
/// let selection = Selection {
///     format: Format::named("nginx"),
///     hints: Default::default(),
///     key: "client,user".parse()?,
///     prefixes: Default::default(),
///     costs: ["path:/search=5".parse::<CostRule>()?].into_iter().collect(),
///     filter: Filter { since: Some(1_700_000_000_000_000_000), ..Filter::default() },
/// };
/// # let _ = selection;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Selection {
    /// The format of all files; `None` if it is to be detected for each file.
    pub format: Option<Format>,
    /// The user's hints about the format, such as the names of fields.
    pub hints: Hints,
    /// The fields that identify a client.
    pub key: LogKey,
    /// The prefix lengths to which client addresses are cut.
    pub prefixes: Prefixes,
    /// The way in which the cost of a request is found.
    pub costs: Costs,
    /// The conditions that requests must meet.
    pub filter: Filter,
}

/// Reads log files and collects what is to be reported about them.
///
/// ```
/// use earrrl_logs::reading::{LogReader, Selection};
///
/// let mut reader = LogReader::new(Selection {
///     format: None, // found for each file
///     hints: Default::default(),
///     key: "client".parse()?,
///     prefixes: Default::default(),
///     costs: Default::default(),
///     filter: Default::default(),
/// });
/// let log = "access.log.gz";
/// # let log = "../../testdata/logs/abuse.log.gz";
/// let mut requests = 0;
/// reader.read(log.as_ref(), |file| file, &mut |_, more| {
///     requests += more.len() as u64;
///     Ok(())
/// })?;
/// assert_eq!(reader.used(), requests);
/// println!("{} clients, {} lines skipped", reader.clients.len(), reader.skips.lines());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogReader {
    pub(crate) selection: Selection,
    /// The fields whose texts come with each request.
    pub(crate) texts: Vec<Vec<Field>>,
    keys: KeyMaker,
    /// The parser of the previous file, from which the next one continues the year of the dates.
    last_parser: Option<Parser>,
    /// The number of every client that occurred.
    pub clients: ClientNumbers,
    /// The number of skipped lines by reason, with examples.
    pub skips: Skips,
    /// The number of lines that were read, headers excluded.
    pub lines: u64,
    /// Warnings about logs that were probably misread, each a sentence that names the file.
    pub doubts: Vec<String>,
    /// The canonical paths of the files that were read.
    files: Vec<PathBuf>,
    /// Fingerprints of the first bytes of the files.
    starts: Vec<u64>,
    /// The formats of the files, each once, in the order in which they occurred.
    pub formats: Vec<Format>,
    /// The named fields of a file in which no line was usable, each with an example of its value.
    pub fields: Vec<(String, String)>,
    /// The parts of a computed key that need fields which a log's format does not have.
    pub missing: Vec<String>,
}

impl LogReader {
    /// Creates a reader that has read no file yet.
    pub fn new(selection: Selection) -> Self {
        let strict = selection.format.is_none();
        Self {
            keys: KeyMaker::new(selection.key.clone(), selection.prefixes, strict),
            selection,
            texts: Vec::new(),
            last_parser: None,
            clients: ClientNumbers::new(),
            skips: Skips::default(),
            lines: 0,
            doubts: Vec::new(),
            files: Vec::new(),
            starts: Vec::new(),
            formats: Vec::new(),
            fields: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Returns the reader with the texts that come with each request: for each list of fields that of the first which
    /// the request has.
    pub fn with_texts(self, texts: Vec<Vec<Field>>) -> Self {
        Self { texts, ..self }
    }

    /// Returns the number of lines that became requests.
    ///
    /// ```
    /// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
    /// # let selection = Selection {
    /// #     format: None,
    /// #     hints: Default::default(),
    /// #     key: "client".parse()?,
    /// #     prefixes: Default::default(),
    /// #     costs: Default::default(),
    /// #     filter: Default::default(),
    /// # };
    /// # let mut reader = LogReader::new(selection);
    /// # let mut held = HeldBack::default();
    /// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
    /// # held.sort();
    /// assert_eq!(reader.used(), reader.lines - reader.skips.lines());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn used(&self) -> u64 {
        self.lines - self.skips.lines()
    }

    /// Reads a file, or the files of a directory, and passes its requests to `take` in
    /// the order of their lines. `take` gets an empty slice whenever standard input has nothing to
    /// read.
    ///
    /// # Errors
    /// Returns the reasons in one line if a file cannot be read to its end, or the error of `take`.
    pub fn read(
        &mut self,
        path: &Path,
        mut watch: impl FnMut(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
        take: &mut impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
    ) -> Result<(), ReadError> {
        let logs = input::logs(path).map_err(|error| unreadable(&name_of(path), &error))?;
        let mut formats = Vec::new();
        let mut problems = Vec::new();
        for log in &logs {
            let input = input::open(log, &mut watch).map_err(|e| unreadable(&name_of(log), &e));
            match input.and_then(|input| self.read_input(input, take)) {
                Ok(format) => formats.extend(format.filter(|format| !formats.contains(format))),
                Err(ReadError::Input(problem)) => problems.push(problem),
                Err(error) => return Err(error),
            }
        }
        let doubt = doubt::several_formats(&formats);
        self.doubts
            .extend(doubt.map(|doubt| format!("{}: {doubt}", name_of(path))));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ReadError::Input(problems.join("; ")))
        }
    }

    /// Reads a file while it is written, from its start, and passes its requests to `take` as they
    /// are written. Goes on with the file that replaces it if it is renamed or removed, and from the
    /// start if it is truncated. A line counts once it is complete.
    ///
    /// After the first line, `take` gets an empty slice ten times a second while there is nothing to
    /// read, so that it can flush or redraw what it shows. Reading ends if `take` returns an error,
    /// or if the stream that `watch` returns does: `watch` should wrap the file in a stream that ends
    /// or fails once the user asks to stop. The followed file itself never ends.
    ///
    /// ```
    /// # use std::io;
    /// # use earrrl_logs::reading::{LogReader, ReadError, Selection};
    /// # fn example(selection: Selection, path: &std::path::Path) -> Result<(), ReadError> {
    /// let mut reader = LogReader::new(selection);
    /// reader.follow(path, |file| file, &mut |clients, requests| {
    ///     for request in requests.iter() {
    ///         println!("{}", clients.key(request.client).escape_ascii());
    ///     }
    ///     if requests.is_empty() && clients.len() > 10 { Err(io::Error::other("enough")) } else { Ok(()) }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the reason in one line if the file cannot be opened or read, or the error of `take`.
    pub fn follow(
        &mut self,
        path: &Path,
        watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
        take: &mut impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
    ) -> Result<(), ReadError> {
        let input = input::follow(path, watch).map_err(|e| unreadable(&name_of(path), &e))?;
        self.read_input(input, take).map(drop)
    }

    /// Reads an opened log. Returns its format; `None` if it has no lines.
    fn read_input(
        &mut self,
        Input {
            name,
            path,
            modified,
            source,
        }: Input,
        take: &mut impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
    ) -> Result<Option<Format>, ReadError> {
        let mut lines = LogLines::new(source);
        self.note_file(&name, path, lines.peek());
        let before = self.lines;
        let Some((envelope, format)) = self.format_of(&name, &mut lines)? else {
            return Ok(None);
        };
        let hints = &self.selection.hints;
        let number = self.lines - before;
        let first = first_lines(lines.peek());
        let mut parser = Parser::new((envelope, format), hints, modified);
        self.check(&parser, format)
            .map_err(|problem| ReadError::Input(format!("{name}: {problem}")))?;
        self.note(format, &parser);
        if let Some(last) = self.last_parser.take()
            && self.selection.hints.year.is_some()
        {
            parser = parser.following(last);
        }
        let malformed = self.skips.malformed();
        let used = self.used();
        let mut others = MalformedLines::default();
        let result = self.read_lines(
            (&name, number),
            &mut lines,
            (&mut parser, &mut others),
            take,
        );
        let malformed = self.skips.malformed() - malformed;
        let counts = (malformed, self.lines - before);
        let doubt = doubt::mixed(
            (format, self.selection.format.is_none()),
            counts,
            &others,
            &self.selection.hints,
        );
        self.doubts
            .extend(doubt.map(|doubt| format!("{name}: {doubt}")));
        if self.used() == used && parser.takes_names() {
            self.fields = parser.named_fields(&first);
        }
        self.last_parser = Some(parser);
        result.map(|()| Some(format))
    }

    /// Returns the format of a log, which the user has named or which its lines show; `None` if it has no lines.
    fn format_of(
        &mut self,
        name: &str,
        lines: &mut LogLines<Box<dyn Read + Send>>,
    ) -> Result<Option<(Envelope, Format)>, ReadError> {
        let hints = &self.selection.hints;
        if let Some(format) = self.selection.format {
            return Ok(Some((envelope_of(lines.peek(), format, hints), format)));
        }
        let mut skips = self.skips.clone();
        let (found, passed) = find_format(lines, name, hints, &mut skips)?;
        self.lines += passed;
        self.skips = skips;
        Ok(found)
    }

    /// Remembers a file, and adds a warning if it was read before, from its path or as a copy.
    fn note_file(&mut self, name: &str, path: Option<PathBuf>, start: &[u8]) {
        let start = &start[..start.len().min(MAX_LINE)];
        let start = doubt::fingerprint(start, &self.clients.hasher());
        if path.as_ref().is_some_and(|path| self.files.contains(path)) {
            self.doubts
                .push(format!("{name} is given twice: its requests count twice"));
        } else if start.is_some_and(|start| self.starts.contains(&start)) {
            let doubt =
                "starts with the same lines as a log before it: do its requests count twice?";
            self.doubts.push(format!("{name} {doubt}"));
        }
        self.files.extend(path);
        self.starts.extend(start);
    }

    /// Remembers a format, and the parts of the key that need fields which it does not have.
    fn note(&mut self, format: Format, parser: &Parser) {
        if self.formats.contains(&format) {
            return;
        }
        self.formats.push(format);
        if let Some(known) = parser.fields() {
            self.missing.extend(self.selection.key.missing(&known));
        }
    }

    /// Checks that the format has the fields that the command line flags name.
    fn check(&self, parser: &Parser, format: Format) -> Result<(), String> {
        let format = format.name();
        let Selection {
            hints,
            key,
            costs,
            filter,
            ..
        } = &self.selection;
        let named = hints.time_field.is_some() || hints.key_field.is_some();
        if named && !parser.takes_names() {
            return Err(format!(
                "is {format}; --time-field and --key-field are for json, csv and logfmt, --key for all"
            ));
        }
        let Some(known) = parser.fields() else {
            return Ok(());
        };
        let mut asked = key.fields().iter().chain(&costs.field);
        let missing = asked.find(|field| !known.contains(&field.name()));
        let missing = missing.map(|field| field.name().to_owned());
        match missing.or_else(|| filter.missing(&known)) {
            None => Ok(()),
            Some(name) => {
                let meant = nearest(&name, known.iter().copied());
                let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
                let (known, meant) = (known.join(", "), meant.unwrap_or_default());
                Err(format!(
                    "is {format}, which has no field `{name}`; it has {known}{meant}"
                ))
            }
        }
    }

    /// Parses the lines in two threads, if they can be parsed apart, and looks up the clients in this one.
    fn read_lines(
        &mut self,
        (name, number): (&str, u64),
        lines: &mut LogLines<Box<dyn Read + Send>>,
        (parser, malformed): (&mut Parser, &mut MalformedLines),
        take: &mut impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
    ) -> Result<(), ReadError> {
        let mut hours = HourWatch::default();
        // Fields that the format does not have need not be looked for on each line.
        let known = parser.fields();
        let has = |field: &Field| match (field, &known) {
            (Field::Named(name), Some(known)) => known.contains(&&**name),
            _ => true,
        };
        let mut texts = self.texts.clone();
        texts.iter_mut().for_each(|fields| fields.retain(has));
        let clients = &mut self.clients;
        let hasher = clients.hasher();
        // Two threads can parse lines that do not depend on others.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut second = parser.fork().filter(|_| cores > 1);
        let of_lines = |parser| LineParser {
            parser,
            keys: self.keys.clone(),
            costs: &self.selection.costs,
            texts: &texts,
            filter: &self.selection.filter,
            hasher: hasher.clone(),
        };
        let own = second.as_mut().map(of_lines);
        let parser = of_lines(parser);
        let parsing = Parsing {
            name,
            number,
            lines,
            skips: &mut self.skips,
            count: &mut self.lines,
            hours: &mut hours,
            malformed,
        };
        let mut crowded = 0;
        let result = parsing.run(parser, own, |batch| {
            crowded += resolve(clients, batch, take).map_err(ReadError::Output)?;
            Ok(())
        });
        self.skips.count(Skip::TooManyClients, crowded);
        self.doubts
            .extend(hours.doubt().map(|doubt| format!("{name}: {doubt}")));
        result
    }
}

/// Returns the error of a log that cannot be opened.
fn unreadable(name: &str, error: &io::Error) -> ReadError {
    ReadError::Input(format!("{name}: {}", plain(error)))
}
