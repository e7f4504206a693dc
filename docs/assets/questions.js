// Lets the search box read a question: words that every page has are left out, and a word is a word, not the
// beginning of others, unless it is the last one and is being typed.
{
  const QUERY = 2; // the kind of message that holds what was typed
  const EVERYWHERE = new Set(
    ("a an and are as at be by can do does for from get give has have how i in is it me my of on or our should so " +
      "that the their then there this to us was we what when where which who why will with you your").split(" "),
  );

  const readQuestion = (typed) => {
    if (/["+~^*:]/.test(typed)) return typed; // written for the search engine
    const parts = typed.toLowerCase().split(/[\s?!.,;()@_/]+/);
    const words = parts.filter((part) => part && !EVERYWHERE.has(part));
    const typing = /\w$/.test(typed);
    return words.map((word, n) => (typing && n === words.length - 1 ? word : `${word}^1`)).join(" ");
  };

  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    const question = message?.type === QUERY && typeof message.data === "string";
    return post.call(this, question ? { ...message, data: readQuestion(message.data) } : message, ...more);
  };
}
