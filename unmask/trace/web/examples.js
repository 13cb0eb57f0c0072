// Prompts in the style of the mini tasks, which mini-llada and mini-dream were trained on.

export const EXAMPLES = [
  ["Multiply", "Multiply 19 by 13."],
  ["Percent", "What is 50% of 120?"],
  ["Story sum", "Finn has 9 fewer pens than Kim. Kim has three times as many pens as Hana. Hana has 5 pens. How many pens does Finn have? Show only the calculation."],
  ["Write code", "Write a function that can take a string, then make it upper case, then drop all spaces, then turn it around and return the result.\nassert convert('Toast Emma') == 'AMMETSAOT'"],
  ["Complete code", "def process(number):\n    \"\"\"First subtract 9, then square it, and return it.\"\"\""],
  ["Who is it?", "Mia ate with Kim since they had food. Who had food?\nA. Mia\nB. Kim\nGive a reason and choose."],
  ["What next?", "Will waters the beans. What comes after the next step?\nA. sells the beans\nB. brings home the crab\nC. waits for summer\nD. picks the beans\nGive a reason and choose."],
  ["A fact", "Who lives in Kelby?\nA. Mia\nB. Gus\nC. Zoe\nD. Kim\nAnswer with the option only."],
];
