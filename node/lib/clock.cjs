// The clocks of tests of applications.
"use strict";
const { ManualClock } = require("./native.cjs");

// Libraries for tests replace `Date` where JavaScript runs, which the native module does not see.
const dateNow = () => Date.now();

// Returns options for the native module, in which a function stands for the text "Date.now".
const withClock = (options) => (options?.clock === "Date.now" ? { ...options, clock: dateNow } : options);

module.exports = { ManualClock, withClock };
