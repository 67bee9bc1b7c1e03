/* What a page does besides htmx: it follows changes while it is seen, and keeps what a person has opened. */
(function () {
  'use strict';

  var sources = [];

  /* An EventSource that is closed while the page is hidden, and opened again by itself. */
  function Live(url) {
    this.url = url;
    this.listeners = [];
    this.readyState = 0;
    this.pause = 1000;
    sources.push(this);
    this.open();
  }

  Live.prototype.addEventListener = function (name, listener) {
    this.listeners.push([name, listener]);
    if (this.real) this.real.addEventListener(name, listener);
  };

  Live.prototype.removeEventListener = function (name, listener) {
    this.listeners = this.listeners.filter(function (each) { return each[0] !== name || each[1] !== listener; });
    if (this.real) this.real.removeEventListener(name, listener);
  };

  Live.prototype.open = function () {
    var live = this;
    if (live.ended || live.real || document.hidden) return;
    var real = live.real = new EventSource(live.url);
    live.listeners.forEach(function (each) { real.addEventListener(each[0], each[1]); });
    real.onopen = function () {
      live.pause = 1000;
      say('');
    };
    real.onerror = function () {
      if (live.ended) return;
      live.rest();
      ask(live);
    };
  };

  Live.prototype.rest = function () {
    if (this.real) this.real.close();
    this.real = null;
  };

  Live.prototype.close = function () {
    this.ended = true;
    this.readyState = 2;
    this.rest();
    sources = sources.filter(function (each) { return each !== this; }, this);
  };

  /* A stream says nothing of why it did not open: ask, then try again. */
  function ask(live) {
    fetch('/readyz', { cache: 'no-store' }).then(function () {
      return fetch(live.url + '&ask=1', { cache: 'no-store' });
    }).then(function (answer) {
      if (answer.status === 401) {
        live.close();
        say('You are signed out. ', '/sign-in', 'Sign in again');
      } else again(live);
    }, function () {
      if (!away) away = new Date();
      say('Not current since ' + time(away) + ': bizrq-web does not answer. This page goes on by itself.');
      again(live);
    });
  }

  function again(live) {
    setTimeout(function () { live.open(); }, live.pause);
    live.pause = Math.min(live.pause * 2, 15000);
  }

  var away = null;

  function time(at) {
    return at.toISOString().slice(11, 16) + ' UTC';
  }

  function say(text, href, label) {
    var place = document.getElementById('offline');
    if (!text) away = null;
    if (!place || (!text && !place.firstChild)) return;
    place.textContent = '';
    if (!text) return;
    var line = document.createElement('p');
    line.className = 'notice warn';
    line.textContent = text;
    if (href) {
      var link = document.createElement('a');
      link.href = href;
      link.textContent = label;
      line.appendChild(link);
    }
    place.appendChild(line);
  }

  document.addEventListener('visibilitychange', function () {
    sources.forEach(function (live) {
      if (document.hidden) live.rest(); else live.open();
    });
  });

  htmx.createEventSource = function (url) { return new Live(url); };

  /* A part of the page that is replaced keeps what is open, typed, scrolled and focused in it. */
  var kept = [];

  /* Elements of a part by a name that the part which replaces it has, too: the id, or what it is and its number. */
  function named(part, selector) {
    var numbers = {}, found = {};
    part.querySelectorAll(selector).forEach(function (each) {
      var what = each.tagName + ' ' + (each.getAttribute('name') || each.getAttribute('href') || '');
      found[each.id ? '#' + each.id : what + ' ' + (numbers[what] = (numbers[what] || 0) + 1)] = each;
    });
    return found;
  }

  function keep(part, selector, read, write) {
    var before = named(part, selector), states = {};
    Object.keys(before).forEach(function (name) {
      var state = read(before[name]);
      if (state !== null) states[name] = state;
    });
    kept.push(function (now) {
      var after = named(now, selector);
      Object.keys(states).forEach(function (name) { if (after[name]) write(after[name], states[name]); });
    });
  }

  function selection(field) {
    try { return [field.selectionStart, field.selectionEnd]; } catch (error) { return [null, null]; }
  }

  document.addEventListener('htmx:beforeSwap', function (event) {
    if (event.detail.xhr.status === 401) say('You are signed out. ', '/sign-in', 'Sign in again');
    var part = event.detail.target, x = window.scrollX, y = window.scrollY;
    kept = [];
    keep(part, 'details[id]', function (each) { return each.open; }, function (each, is) { each.open = is; });
    keep(part, 'input:not([type=hidden]), textarea', function (each) {
      return each.value !== each.defaultValue ? each.value : null;
    }, function (each, text) { each.value = text; });
    keep(part, 'input[type=checkbox], input[type=radio]', function (each) {
      return each.checked !== each.defaultChecked ? each.checked : null;
    }, function (each, is) { each.checked = is; });
    keep(part, 'select', function (each) {
      var chosen = each.options[each.selectedIndex];
      return chosen && !chosen.defaultSelected ? each.value : null;
    }, function (each, text) { each.value = text; });
    keep(part, 'a[href], button, input, select, textarea, summary, [tabindex]', function (each) {
      return each === document.activeElement ? selection(each) : null;
    }, function (each, at) {
      each.focus({ preventScroll: true });
      if (at[0] !== undefined && at[0] !== null) each.setSelectionRange(at[0], at[1]);
    });
    keep(part, '.scroll', function (each) { return each.scrollLeft || null; }, function (each, left) {
      each.scrollLeft = left;
    });
    kept.push(function () { window.scrollTo(x, y); });
  });

  document.addEventListener('htmx:afterSwap', function () {
    var now = document.getElementById('live');
    if (now) kept.forEach(function (write) { write(now); });
    kept = [];
  });

  /* Open or close all of a tree. Without a script the buttons are not there. */
  document.querySelectorAll('[data-all]').forEach(function (button) {
    button.hidden = false;
  });
  document.addEventListener('click', function (event) {
    var button = event.target.closest('[data-all]');
    if (!button) return;
    document.querySelectorAll('#live details').forEach(function (each) { each.open = button.dataset.all === 'open'; });
  });
})();
